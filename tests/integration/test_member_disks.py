"""Disks that replaced a lost one are in no stack: they go with the cluster all the same."""

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request
from support.clusters.local_cloud import until

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import CLUSTER, MEMBER
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.node import etcd_identity

NAME = "quokka"


@pytest.fixture
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with account(tmp_path_factory.mktemp("account")):
        yield Aws(REGION)


def test_the_leader_gives_up_what_only_it_can_know_of(aws: Aws) -> None:
    clusters.create(request(NAME), lambda _: None, aws)
    holder = next(each for each in autoscaling.instances(aws, NAME, "control"))
    of_the_stack = {each["VolumeId"] for each in volumes(aws)}
    held, free = disk(aws, holder.zone), disk(aws, holder.zone)
    aws.ec2.attach_volume(VolumeId=held, InstanceId=holder.id, Device="/dev/sdz")

    etcd_identity.give_up_disks(aws, NAME)
    assert {each["VolumeId"] for each in volumes(aws)} == {*of_the_stack, held}
    with pytest.raises(ClientError, match=r"InvalidVolume\.NotFound"):
        aws.ec2.describe_volumes(VolumeIds=[free])
    aws.ec2.terminate_instances(InstanceIds=[holder.id])
    until(lambda: held not in {each["VolumeId"] for each in volumes(aws)})

    teardown.delete(NAME, aws=aws)
    assert remains(NAME) == []


def disk(aws: Aws, zone: str) -> str:
    tags = [{"Key": CLUSTER, "Value": NAME}, {"Key": MEMBER, "Value": "a"}]
    made = aws.ec2.create_volume(
        AvailabilityZone=zone,
        Size=1,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )
    return str(made["VolumeId"])


def volumes(aws: Aws) -> list[dict[str, str]]:
    """Disks of members."""
    found = aws.ec2.describe_volumes(Filters=[{"Name": f"tag:{MEMBER}", "Values": ["*"]}])
    return list(found["Volumes"])
