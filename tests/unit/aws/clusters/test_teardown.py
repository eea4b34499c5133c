"""How a cluster ends: what is waited for before the network goes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.aws.account import Laptop, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request

from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.network import cloudformation
from spotelastic.errors import EnvironmentFailure, Unavailable

NAME = "quokka"
LEFT = {"NetworkInterfaceId": "eni-1"}


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    with account(tmp_path):
        laptop = Laptop()
        clusters.create(request(NAME, 2), quiet, laptop.aws)
        yield laptop


def quiet(_: str) -> None: ...


def linger(laptop: Laptop, looks: int) -> None:
    """An interface of a terminated instance that so many looks still see, as seconds do on AWS."""
    seen = 0

    def answer(parsed: dict[str, Any], **_: object) -> None:
        nonlocal seen
        seen += 1
        if seen <= looks:
            parsed["NetworkInterfaces"] = [LEFT]

    laptop.aws.ec2.meta.events.register("after-call.ec2.DescribeNetworkInterfaces", answer)


def test_the_stack_goes_when_the_interfaces_of_the_instances_have_gone(laptop: Laptop) -> None:
    linger(laptop, 2)
    with laptop.trial():
        teardown.delete(NAME, aws=laptop.aws)
    looks = [at for at, call in enumerate(laptop.calls) if call == "ec2.DescribeNetworkInterfaces"]
    assert len(looks) == 3
    assert looks[-1] < laptop.calls.index("cloudformation.DeleteStack")
    assert remains(NAME) == []


def test_interfaces_that_stay_are_named_and_keep_the_stack(laptop: Laptop) -> None:
    linger(laptop, 1_000_000)
    with pytest.raises(Unavailable, match=f"interfaces of {NAME} still exist: not after"):
        teardown.delete(NAME, aws=laptop.aws, within=1.0)
    assert cloudformation.describe(laptop.aws, Names(NAME).stack) is not None


def test_how_many_instances_still_shut_down_is_told(laptop: Laptop) -> None:
    """With eight GPUs they do so for minutes."""
    looks, told = 3, list[str]()
    large = {
        "InstanceId": "i-0123456789abcdef0",
        "InstanceType": "p4d.24xlarge",
        "LaunchTime": datetime.now(UTC),
        "State": {"Name": "shutting-down"},
    }

    def answer(parsed: dict[str, Any], **_: object) -> None:
        nonlocal looks
        looks -= 1
        if looks > 0:
            parsed["Reservations"] = [{"Instances": [large]}]

    laptop.aws.ec2.meta.events.register("after-call.ec2.DescribeInstances", answer)
    teardown.delete(NAME, aws=laptop.aws, told_every=0.0, say=told.append)
    assert len([line for line in told if line.startswith("1 instance still shutting down, ")]) == 2
    assert remains(NAME) == []


def test_what_others_have_put_into_the_network_is_named_where_it_keeps_the_stack(
    laptop: Laptop,
) -> None:
    """As GuardDuty does, by itself. One with several network cards has a network of its own."""
    teardown.delete(NAME, aws=laptop.aws)
    clusters.create(request(NAME, 1, instance_types=("p4d.24xlarge",)), quiet, laptop.aws)
    ec2 = laptop.aws.ec2
    tagged = [{"Name": f"tag:{CLUSTER}", "Values": [NAME]}]
    subnet = ec2.describe_subnets(Filters=tagged)["Subnets"][0]
    group = ec2.create_security_group(
        GroupName="GuardDutyManagedSecurityGroup", Description="of others", VpcId=subnet["VpcId"]
    )["GroupId"]
    interface = ec2.create_network_interface(
        SubnetId=subnet["SubnetId"], Groups=[group], Description="VPC Endpoint Interface vpce-1"
    )["NetworkInterface"]["NetworkInterfaceId"]
    with pytest.raises(EnvironmentFailure, match="has dependencies and cannot be deleted") as told:
        teardown.delete(NAME, aws=laptop.aws)
    found = f"{interface} (VPC Endpoint Interface vpce-1), {group} (GuardDutyManagedSecurityGroup)"
    assert f"does not belong to the cluster ({found}): delete that, and run `spot" in str(
        told.value
    )
    ec2.delete_network_interface(NetworkInterfaceId=interface)
    ec2.delete_security_group(GroupId=group)
    teardown.delete(NAME, aws=laptop.aws)
    assert remains(NAME) == []
