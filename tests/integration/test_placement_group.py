"""`--placement cluster`: all workers in one placement group, which goes with the cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.aws.account import REGION, account
from support.aws.cluster_remains import kinds, remains
from support.aws.cluster_requests import changed, request
from support.clusters.local_cloud import until

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity, Settings

NAME, BEST = "quokka", "us-east-1c"
REQUEST = request(NAME, 3, zones=(BEST, "us-east-1a"), placement="cluster")


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with account(tmp_path_factory.mktemp("account")):
        yield Aws(REGION)


def up(aws: Aws, **changes: Any) -> None:
    clusters.create(changed(REQUEST, **changes), lambda _: None, aws)


def worker_zones(aws: Aws) -> list[str]:
    return [each.zone for each in autoscaling.instances(aws, NAME, "worker")]


def group_of(aws: Aws) -> str:
    """That new workers are launched into."""
    (version,) = aws.ec2.describe_launch_template_versions(
        LaunchTemplateName=Names(NAME).workers, Versions=["$Latest"]
    )["LaunchTemplateVersions"]
    return str(version["LaunchTemplateData"].get("Placement", {}).get("GroupName"))


def test_workers_are_in_one_group_of_one_zone_until_the_cluster_goes(aws: Aws) -> None:
    up(aws)
    until(lambda: worker_zones(aws) == [BEST] * 3)
    stack = aws.cloudformation.describe_stack_resources(StackName=Names(NAME).stack)
    (made,) = [each for each in stack["StackResources"] if each["LogicalResourceId"] == "Placement"]
    assert made["ResourceType"] == "AWS::EC2::PlacementGroup"
    assert group_of(aws) == made["PhysicalResourceId"]
    assert "ec2.placement_groups" in kinds(NAME)

    up(aws, placement="", zones=("us-east-1a",), settings=Settings(1, 4, workers=1))
    aws.autoscaling.set_desired_capacity(
        AutoScalingGroupName=Names(NAME).workers, DesiredCapacity=4
    )
    until(lambda: worker_zones(aws) == [BEST] * 4)
    assert group_of(aws) == made["PhysicalResourceId"]

    teardown.delete(NAME, aws=aws)
    assert remains(NAME) == []


def test_a_placement_that_cannot_be_is_refused_and_nothing_is_made(aws: Aws) -> None:
    for changes, message in (
        ({"capacity": Capacity(zones="spread")}, "--placement cluster .* --zones spread"),
        ({"instance_types": ("t3.large",)}, r"t3\.large cannot be in such a placement group"),
    ):
        with pytest.raises(UsageError, match=message):
            up(aws, **changes)
    assert remains(NAME) == []


def test_a_cluster_that_was_made_without_a_group_gets_none(aws: Aws) -> None:
    up(aws, placement="")
    assert group_of(aws) == "None"
    with pytest.raises(UsageError, match=f"--placement cluster: {NAME} was made without"):
        up(aws)
    teardown.delete(NAME, aws=aws)
    assert remains(NAME) == []
