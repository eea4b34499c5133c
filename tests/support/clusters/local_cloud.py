"""Starts a local cloud for tests, with instances that do little, and helpers to observe it."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
from support.processes.patience import PATIENT
from support.unkind import UNKIND
from support.unkind.fault_client import FaultClient

from spotelastic.local import cloud
from spotelastic.local.cloud import ADMINISTRATOR, CloudInfo

T = TypeVar("T")

IDLE = ("/bin/sh", "-c", "sleep 1000 & exec sleep 1000")
"""An instance of two processes that do nothing, but start at once."""


@contextmanager
def running_cloud(home: Path, boot: Sequence[str] = IDLE) -> Iterator[CloudInfo]:
    """A cloud in a home of its own. It ends with the block."""
    with environment(SPOTELASTIC_HOME=str(home), **{cloud.PROGRAM: UNKIND}):
        info = cloud.start(detach=False, boot_command=boot)
        try:
            yield info
        finally:
            cloud.stop(info)
            shutil.rmtree(cloud.buckets())
            shutil.rmtree(cloud.logs(), ignore_errors=True)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def until(probe: Callable[[], T], timeout: float = PATIENT) -> T:
    """The first true answer. Fails after `timeout` seconds with the last one."""
    deadline = time.monotonic() + timeout
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"still {answer!r} after {timeout:.0f} s"
        time.sleep(0.05)
    return answer


@dataclass
class Laptop:
    """The cloud as a user's machine sees it, with a network in it."""

    info: CloudInfo
    subnets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.session = boto3.Session(
            aws_access_key_id=ADMINISTRATOR,
            aws_secret_access_key=self.info.secret,
            region_name=self.info.region,
        )
        self.faults = FaultClient(self.info)
        self.ec2, self.scaling = self.client("ec2"), self.client("autoscaling")

    def client(self, service: str) -> Any:
        return self.session.client(service, endpoint_url=self.info.endpoint)

    def make_network(self) -> str:
        """A VPC with one subnet a zone; returns its id."""
        prefix = self.info.net.split(".0.0/")[0]
        vpc = str(self.ec2.create_vpc(CidrBlock=self.info.net)["Vpc"]["VpcId"])
        self.subnets = tuple(
            self.ec2.create_subnet(
                VpcId=vpc, CidrBlock=f"{prefix}.{index}.0/24", AvailabilityZone=zone
            )["Subnet"]["SubnetId"]
            for index, zone in enumerate(self.info.zones)
        )
        return vpc

    def make_template(self, name: str, **data: Any) -> str:
        created = self.ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={"ImageId": "ami-12345678", "InstanceType": "g5.xlarge", **data},
        )
        return str(created["LaunchTemplate"]["LaunchTemplateId"])

    def make_group(self, name: str, template: str, size: int, **options: Any) -> None:
        """A group of spot instances over all zones, unless `options` say otherwise."""
        values: dict[str, Any] = {
            "MinSize": 0,
            "MaxSize": 8,
            "DesiredCapacity": size,
            "VPCZoneIdentifier": ",".join(self.subnets),
            "MixedInstancesPolicy": self.spot_policy(template),
        }
        self.scaling.create_auto_scaling_group(AutoScalingGroupName=name, **(values | options))

    def spot_policy(self, template: str, *types: str, on_demand: int = 0) -> dict[str, Any]:
        return {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateId": template,
                    "Version": "$Latest",
                },
                "Overrides": [{"InstanceType": type} for type in types],
            },
            "InstancesDistribution": {
                "OnDemandBaseCapacity": on_demand,
                "OnDemandPercentageAboveBaseCapacity": 0,
                "SpotAllocationStrategy": "price-capacity-optimized",
            },
        }

    def group(self, name: str) -> dict[str, Any]:
        found = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return dict(found["AutoScalingGroups"][0])

    def members(self, name: str, *states: str) -> dict[str, dict[str, Any]]:
        """By instance id; in any state, or in one of `states`."""
        return {
            member["InstanceId"]: member
            for member in self.group(name)["Instances"]
            if not states or member["LifecycleState"] in states
        }

    def in_service(self, name: str, count: int) -> dict[str, dict[str, Any]]:
        """Waits until so many members are in service, and none besides."""

        def settled() -> dict[str, dict[str, Any]]:
            members = self.members(name)
            states = [member["LifecycleState"] for member in members.values()]
            return members if states == ["InService"] * count else {}

        return until(settled) if count else {}

    def activities(self, group: str, status: str) -> list[dict[str, Any]]:
        found = self.scaling.describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
        return [each for each in found if each["StatusCode"] == status]

    def drains(self, group: str) -> None:
        """Members that are to end wait until `drained`."""
        self.scaling.put_lifecycle_hook(
            AutoScalingGroupName=group,
            LifecycleHookName="drain",
            LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
            HeartbeatTimeout=300,
        )

    def drained(self, group: str, instance: str) -> None:
        self.scaling.complete_lifecycle_action(
            AutoScalingGroupName=group,
            LifecycleHookName="drain",
            InstanceId=instance,
            LifecycleActionResult="CONTINUE",
        )

    def delete_group(self, name: str) -> None:
        self.scaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
        until(
            lambda: (
                not self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])[
                    "AutoScalingGroups"
                ]
            )
        )

    def instance(self, name: str) -> dict[str, Any]:
        found = self.ec2.describe_instances(InstanceIds=[name])
        return dict(found["Reservations"][0]["Instances"][0])

    def state(self, name: str) -> str:
        return str(self.instance(name)["State"]["Name"])

    def console(self, name: str) -> str:
        path = Path(self.info.folder, "instances", name, "console.log")
        return path.read_text() if path.exists() else ""


def python(source: str) -> tuple[str, ...]:
    """A boot command."""
    return (sys.executable, "-c", source)
