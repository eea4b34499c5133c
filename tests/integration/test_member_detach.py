"""What lingers on an instance that is terminated is taken from it, by the control role alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from botocore.exceptions import ClientError
from support.aws.account import REGION, account
from support.aws.cluster_requests import request
from support.aws.policies import keeps_to_its_cluster, role_of, signed_in
from support.aws.template import ACCOUNT
from support.clusters.local_cloud import until
from support.strict.authority import Authority
from support.unkind.conditions import Conditions

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import CLUSTER, MEMBER, ROLE, Identity
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.node import etcd_identity

NAME, OTHER = "quokka", "wombat"
T = TypeVar("T")


@pytest.fixture
def authority(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Authority]:
    monkeypatch.setenv("SPOTELASTIC_VOLUMES", str(tmp_path_factory.mktemp("volumes")))
    with account(tmp_path_factory.mktemp("account")) as authority:
        clusters.create(request(NAME), lambda _: None, Aws(REGION))
        yield authority


def test_the_interface_and_the_disk_of_a_terminated_instance_are_taken_over(
    authority: Authority,
) -> None:
    admin = Aws(REGION)
    role = role_of(admin, NAME, "ControlRole")
    aws, told = signed_in(admin, role), list[str]()
    first = before(admin)
    place = etcd_identity.take(aws, NAME, "a", first, told.append)
    assert told == []
    successor = replace(first, instance=another(admin, first.instance))
    terminate_lingering(first.instance)
    assert etcd_identity.take(aws, NAME, "a", successor, told.append) == place
    lingers = f"is still attached to {first.instance}, which is terminated"
    assert [line.endswith(lingers) for line in told] == [True, True]
    held = admin.ec2.describe_volumes(VolumeIds=[place.name])["Volumes"][0]["Attachments"]
    assert [each["InstanceId"] for each in held] == [successor.instance]
    assert interface(admin, NAME)["Attachment"]["InstanceId"] == successor.instance
    detached = {"ec2:DetachNetworkInterface", "ec2:DetachVolume"}
    keeps_to_its_cluster(role, NAME, authority.calls, detached)


@pytest.mark.soak
def test_answers_from_before_make_nothing_that_is_free_be_detached_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the refusal end the boot: what EC2 shows is looked at again."""
    monkeypatch.setenv("SPOTELASTIC_VOLUMES", str(tmp_path / "attached"))
    with account(tmp_path, Conditions(stale=0.4)):
        admin = Aws(REGION)
        clusters.create(request(NAME), lambda _: None, admin)
        aws = signed_in(admin, role_of(admin, NAME, "ControlRole"))
        first = eventually(lambda: before(admin))
        place = etcd_identity.take(aws, NAME, "a", first, lambda _: None)
        successor = replace(first, instance=eventually(lambda: another(admin, first.instance)))
        terminate_lingering(first.instance)
        assert etcd_identity.take(aws, NAME, "a", successor, lambda _: None) == place


def test_the_interface_of_another_cluster_is_not_detached(authority: Authority) -> None:
    admin = Aws(REGION)
    aws = signed_in(admin, role_of(admin, NAME, "ControlRole"))
    clusters.create(request(OTHER), lambda _: None, admin)
    theirs = before(admin, OTHER)
    found = interface(admin, OTHER)
    attached = admin.ec2.attach_network_interface(
        NetworkInterfaceId=found["NetworkInterfaceId"], InstanceId=theirs.instance, DeviceIndex=1
    )
    for attachment in (attached["AttachmentId"], "eni-attach-00000000"):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            aws.ec2.detach_network_interface(AttachmentId=attachment, Force=True)
    assert interface(admin, OTHER)["Attachment"]["InstanceId"] == theirs.instance


def eventually(look: Callable[[], T]) -> T:
    """What a look finds once EC2 shows it."""

    def shown() -> list[T]:
        try:
            return [look()]
        except (ValueError, ClientError):
            return []

    (found,) = until(shown)
    return found


def before(aws: Aws, cluster: str = NAME) -> Identity:
    """The instance that is the member at first."""
    machines = autoscaling.instances(aws, cluster, "control")
    (it,) = (machine for machine in machines if machine.member == "a")
    return Identity(it.id, it.address, it.zone, REGION, ACCOUNT, it.type, False)


def another(aws: Aws, instance: str) -> str:
    """A second one beside it, as its group launches it."""
    like = aws.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    tags = {CLUSTER: NAME, ROLE: "control", MEMBER: "a"}
    made = aws.ec2.run_instances(
        ImageId=like["ImageId"],
        InstanceType=like["InstanceType"],
        SubnetId=like["SubnetId"],
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ],
    )
    return str(made["Instances"][0]["InstanceId"])


def terminate_lingering(instance: str) -> None:
    """As on AWS at times: it has ended, and what it held is not free yet."""
    from moto.ec2.models import ec2_backends

    it: Any = ec2_backends[ACCOUNT][REGION].get_instance(instance)
    it._state.name, it._state.code = "terminated", 48


def interface(aws: Aws, cluster: str) -> dict[str, Any]:
    filters = [
        {"Name": f"tag:{CLUSTER}", "Values": [cluster]},
        {"Name": f"tag:{MEMBER}", "Values": ["a"]},
    ]
    (found,) = aws.ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
    return dict(found)
