"""Regions of the local cloud: what one has, the others do not."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.clusters.local_cloud import running_cloud, until

from spotelastic.local.cloud import REGIONS, CloudInfo
from spotelastic.local.local_session import LocalSession

HOME, OTHER = REGIONS[0], REGIONS[2]
IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudInfo]:
    with running_cloud(tmp_path_factory.mktemp("home")) as info:
        yield info


def client(info: CloudInfo, service: str, region: str) -> Any:
    return LocalSession(info, region).client(service, region_name=region, config=None)


def make_group(info: CloudInfo, region: str) -> None:
    """A group of one instance, of the same name in each region."""
    ec2, net = client(info, "ec2", region), info.net_of(region)
    vpc = ec2.create_vpc(CidrBlock=net)["Vpc"]["VpcId"]
    block = f"{net.split('/')[0].rpartition('.')[0]}.0/24"
    made = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=f"{region}a")
    image = client(info, "ssm", region).get_parameter(Name=IMAGE)["Parameter"]["Value"]
    data = {"ImageId": image, "InstanceType": "g4dn.xlarge"}
    ec2.create_launch_template(LaunchTemplateName="template", LaunchTemplateData=data)
    client(info, "autoscaling", region).create_auto_scaling_group(
        AutoScalingGroupName="group",
        MinSize=1,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateName": "template", "Version": "$Latest"},
        VPCZoneIdentifier=made["Subnet"]["SubnetId"],
    )


def in_service(info: CloudInfo, region: str) -> list[str]:
    found = client(info, "autoscaling", region).describe_auto_scaling_groups()
    return [
        each["InstanceId"]
        for group in found["AutoScalingGroups"]
        for each in group["Instances"]
        if each["LifecycleState"] == "InService"
    ]


def test_groups_of_one_name_in_two_regions_have_instances_of_their_own(info: CloudInfo) -> None:
    its = {}
    for region in (HOME, OTHER):
        make_group(info, region)
        its[region] = until(partial(in_service, info, region))
        found = client(info, "ec2", region).describe_instances()["Reservations"]
        assert [i["InstanceId"] for r in found for i in r["Instances"]] == its[region]
    assert its[HOME] != its[OTHER]
    other = client(info, "autoscaling", OTHER)
    other.terminate_instance_in_auto_scaling_group(
        InstanceId=its[OTHER][0], ShouldDecrementDesiredCapacity=False
    )
    until(lambda: in_service(info, OTHER) not in ([], its[OTHER]))
    other.delete_auto_scaling_group(AutoScalingGroupName="group", ForceDelete=True)
    until(lambda: not other.describe_auto_scaling_groups()["AutoScalingGroups"])
    assert in_service(info, HOME) == its[HOME]
    home = client(info, "autoscaling", HOME)
    home.delete_auto_scaling_group(AutoScalingGroupName="group", ForceDelete=True)
    until(lambda: not home.describe_auto_scaling_groups()["AutoScalingGroups"])


def test_addresses_of_two_regions_do_not_overlap(info: CloudInfo) -> None:
    nets = [info.net_of(region) for region in REGIONS]
    assert len(set(nets)) == len(nets)
