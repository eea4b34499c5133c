"""Extends moto's Auto Scaling groups and members for the local cloud, and reads their settings."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moto.autoscaling import models

from spotelastic.local.autoscaling import planner
from spotelastic.local.autoscaling.activities import Activity


@dataclass(slots=True)
class LifecycleWait:
    """A life-cycle action in progress; it ends at `deadline` (epoch s) unless it is completed."""

    token: str
    deadline: float


class LocalGroupMember(models.InstanceState):
    """moto's member, extended for life-cycle hooks and spot."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.zone = str(self.instance.placement.zone)
        self.spot = self.instance.lifecycle == "spot"
        self.waits: dict[str, LifecycleWait] = {}
        """Life-cycle actions in progress, by name of the hook."""
        self.activity: Activity | None = None
        """The scaling activity in progress for the member."""

    def wait(self, hook: Any, now: float) -> LifecycleWait:
        """Begin a life-cycle action at the hook."""
        wait = LifecycleWait(str(uuid.uuid4()), now + hook.heartbeat_timeout)
        self.waits[hook.name] = wait
        return wait


def policy_of(group: Any) -> planner.GroupRequest:
    """Return what a group asks for, from its launch template or mixed-instances policy."""
    mixed = group.mixed_instances_policy or {}
    overrides = mixed.get("LaunchTemplate", {}).get("Overrides") or []
    types = tuple(item["InstanceType"] for item in overrides if item.get("InstanceType"))
    subnets = tuple(
        (subnet.id, subnet.availability_zone)
        for subnet in group.ec2_backend.describe_subnets(
            subnet_ids=[name.strip() for name in (group.vpc_zone_identifier or "").split(",")]
        )
    )
    distribution = mixed.get("InstancesDistribution") or _plain(group)
    return planner.GroupRequest(
        desired=group.desired_capacity or 0,
        subnets=subnets,
        types=types or (group.instance_type,),
        on_demand_base=int(distribution.get("OnDemandBaseCapacity") or 0),
        on_demand_percentage=int(distribution.get("OnDemandPercentageAboveBaseCapacity", 100)),
        on_demand_strategy=distribution.get("OnDemandAllocationStrategy") or "prioritized",
        spot_strategy=distribution.get("SpotAllocationStrategy") or "lowest-price",
    )


def _plain(group: Any) -> dict[str, Any]:
    """Return the distribution of a group without a policy.

    Its launch template says spot or on-demand.
    """
    version = group.ec2_launch_template.get_version(group.launch_template_version)
    market = (version.data.get("InstanceMarketOptions") or {}).get("MarketType")
    return {"OnDemandPercentageAboveBaseCapacity": 0 if market == "spot" else 100}


def counting(group: Any) -> list[LocalGroupMember]:
    """Return the members that count towards the size: terminating ones do not."""
    return [
        member
        for member in group.instance_states
        if member.lifecycle_state == "InService" or member.lifecycle_state.startswith("Pending")
    ]


def seen(members: Iterable[LocalGroupMember]) -> list[planner.GroupInstance]:
    """Return the members as the planner needs them."""
    return [
        planner.GroupInstance(
            member.instance_id,
            member.zone,
            member.spot,
            member.instance.launch_time.timestamp(),
        )
        for member in members
    ]


def suspended(group: Any, process: str) -> bool:
    """Whether one of the group's processes (Launch, Terminate, HealthCheck, ...) is suspended."""
    return any(item["ProcessName"] == process for item in group.suspended_processes)


def launch(group: Any, place: planner.LaunchPool, spot: bool) -> Any:
    """Launch one instance in a pool. Raises EC2's error."""
    version = group.ec2_launch_template.get_version(group.launch_template_version)
    tags = {**group.get_propagated_tags(), "aws:autoscaling:groupName": group.name}
    reservation = group.ec2_backend.run_instances(
        None,
        1,
        version.user_data,
        version.security_groups,
        instance_type=place.type,
        region_name=group.region,
        subnet_id=place.subnet,
        launch_template={
            "LaunchTemplateId": group.ec2_launch_template.id,
            "Version": str(version.number),
        },
        tags={"instance": tags},
        spot=spot,
        associate_public_ip=None,
    )
    return reservation.instances[0]
