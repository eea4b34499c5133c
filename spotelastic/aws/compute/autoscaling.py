"""Worker groups and instances: what the controller observes of them and does to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling
from spotelastic.aws.base.identity import CLUSTER, MEMBER, ROLE, SUBNETS
from spotelastic.aws.base.names import TERMINATE_HOOK

ALIVE = frozenset({"pending", "running"})
GONE = frozenset({"shutting-down", "terminated", "stopping", "stopped"})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An instance's place in its group."""

    instance: str
    state: str
    """Pending, InService, Terminating, Terminating:Wait, ..."""
    healthy: bool = True

    @property
    def leaving(self) -> bool:
        return self.state.startswith(("Terminat", "Detach"))


@dataclass(frozen=True, slots=True)
class ScalingGroup:
    name: str
    desired: int
    places: tuple[GroupMember, ...]
    subnets: tuple[str, ...] = ()
    """Those that it launches in, of"""
    offered: tuple[str, ...] = ()
    """those that it may launch in."""
    suspended: bool = False
    """AWS has stopped its launches, as it does where all have failed for a day."""

    @property
    def staying(self) -> int:
        """How many of its instances are not on their way out."""
        return sum(not place.leaving for place in self.places)

    @property
    def asked(self) -> int:
        """How many more it has been asked for, and will launch."""
        return max(0, self.desired - self.staying)

    def place(self, instance: str) -> GroupMember | None:
        return next((place for place in self.places if place.instance == instance), None)


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance as EC2 describes it."""

    id: str
    role: str
    """worker or control."""
    state: str
    type: str
    zone: str
    address: str
    spot: bool
    launched_at: float
    member: str = ""
    """The etcd member that a control instance runs."""
    reason: str = ""
    """Of its end, as EC2 names it: Server.SpotInstanceTermination, ..."""
    public: bool = False
    """Whether it has an address on the internet; a new one gets that a moment later."""


# -- observe -------------------------------------------------------------------------------------


def group(aws: Aws, name: str) -> ScalingGroup | None:
    return groups(aws, (name,)).get(name)


def groups(aws: Aws, names: Sequence[str]) -> dict[str, ScalingGroup]:
    """By name; those that AWS knows, in one call."""
    with calling(f"describe the worker groups {', '.join(names)}"):
        answer = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=list(names))
    return {
        item["AutoScalingGroupName"]: _group(item)
        for item in answer["AutoScalingGroups"]
        if not item.get("Status")  # it is being deleted
    }


def _group(item: dict[str, Any]) -> ScalingGroup:
    places = [
        GroupMember(each["InstanceId"], each["LifecycleState"], each["HealthStatus"] == "Healthy")
        for each in item.get("Instances", ())
    ]
    places.sort(key=lambda place: place.instance)
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    return ScalingGroup(
        item["AutoScalingGroupName"],
        item["DesiredCapacity"],
        tuple(places),
        subnets_of(item.get("VPCZoneIdentifier", "")),
        subnets_of(tags.get(SUBNETS, "")),
        any(map(_by_aws, item.get("SuspendedProcesses", ()))),
    )


def _by_aws(suspended: dict[str, Any]) -> bool:
    """Not by a person, who may have a reason."""
    why = suspended.get("SuspensionReason", "")
    return suspended["ProcessName"] == "Launch" and why != "" and not why.startswith("User")


def subnets_of(listed: str) -> tuple[str, ...]:
    return tuple(filter(None, listed.split(",")))


def machines(aws: Aws, cluster: str, role: str = "") -> tuple[Instance, ...]:
    """All instances of the cluster that EC2 still knows, terminated ones included."""
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    if role:
        filters.append({"Name": f"tag:{ROLE}", "Values": [role]})
    with calling(f"describe the instances of {cluster}"):
        pages = aws.ec2.get_paginator("describe_instances").paginate(Filters=filters)
        return tuple(
            _machine(item)
            for page in pages
            for reservation in page["Reservations"]
            for item in reservation["Instances"]
        )


def clusters(aws: Aws) -> frozenset[str]:
    """Names of the clusters that have a group, an instance or a disk in the account and region."""
    with calling("list the clusters"):
        tagged = [{"Name": "tag-key", "Values": [CLUSTER]}]
        groups = aws.autoscaling.get_paginator("describe_auto_scaling_groups").paginate(
            Filters=tagged
        )
        found = [group for page in groups for group in page["AutoScalingGroups"]]
        alive = {"Name": "instance-state-name", "Values": ["pending", "running", "stopped"]}
        instances = aws.ec2.get_paginator("describe_instances").paginate(Filters=[*tagged, alive])
        found += [
            instance
            for page in instances
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]
        volumes = aws.ec2.get_paginator("describe_volumes").paginate(Filters=tagged)
        found += [volume for page in volumes for volume in page["Volumes"]]
    return frozenset(
        tag["Value"] for item in found for tag in item.get("Tags", ()) if tag["Key"] == CLUSTER
    )


def _machine(item: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    return Instance(
        id=item["InstanceId"],
        role=tags.get(ROLE, ""),
        state=item["State"]["Name"],
        type=item["InstanceType"],
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        address=item.get("PrivateIpAddress", ""),
        spot=item.get("InstanceLifecycle") == "spot",
        launched_at=item["LaunchTime"].timestamp(),
        member=tags.get(MEMBER, ""),
        reason=item.get("StateReason", {}).get("Code", ""),
        public=bool(item.get("PublicIpAddress")),
    )


def console(aws: Aws, instance: str) -> str:
    """What the instance has printed, or the end of it; "" where AWS has nothing yet.

    Where the newest is not to be had, it is what AWS took down by itself, some time after the boot
    and at the end: of older kinds of machines, and of those that are gone, AWS knows no other.
    """
    try:
        newest = _console(aws, instance, Latest=True)
    except Rejected as refused:
        if refused.code in DENIED:
            raise
        try:
            return _console(aws, instance)
        except Rejected:
            raise refused from None
    return newest or _console(aws, instance)


def _console(aws: Aws, instance: str, **which: bool) -> str:
    with calling(f"read the console of {instance}"):
        answer = aws.ec2.get_console_output(InstanceId=instance, **which)
    return str(answer.get("Output", ""))


# -- act -----------------------------------------------------------------------------------------


def replace(aws: Aws, instance: str) -> None:
    """Ends an instance of a group, which launches another at once: its desired size stays.

    Done already is done: an instance that is gone or in no group (any more) is no error.
    """
    _terminate(aws, instance, smaller=False)


def remove(aws: Aws, instance: str) -> None:
    """Ends an instance of a group, which is one smaller then. Done already is done."""
    _terminate(aws, instance, smaller=True)


def _terminate(aws: Aws, instance: str, *, smaller: bool) -> None:
    try:
        with calling(f"{'remove' if smaller else 'replace'} {instance}"):
            aws.autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=instance, ShouldDecrementDesiredCapacity=smaller
            )
    except Rejected as error:
        if error.code != "ValidationError" or "not found" not in str(error).lower():
            raise


def complete_drain(aws: Aws, group: str, instance: str) -> None:
    """Lets the group go on with an instance that has drained; without effect if it did already."""
    try:
        with calling(f"complete the life-cycle action of {instance}"):
            aws.autoscaling.complete_lifecycle_action(
                AutoScalingGroupName=group,
                LifecycleHookName=TERMINATE_HOOK,
                InstanceId=instance,
                LifecycleActionResult="CONTINUE",
            )
    except Rejected as error:
        if error.code != "ValidationError":  # no active action: timed out or completed before
            raise


def set_desired(aws: Aws, group: str, desired: int) -> None:
    with calling(f"set the size of {group} to {desired}"):
        aws.autoscaling.set_desired_capacity(
            AutoScalingGroupName=group, DesiredCapacity=desired, HonorCooldown=False
        )


def set_subnets(aws: Aws, group: str, subnets: Sequence[str]) -> None:
    """Where the group launches from now on; instances that it has stay where they are."""
    with calling(f"let {group} launch in {', '.join(subnets)}"):
        aws.autoscaling.update_auto_scaling_group(
            AutoScalingGroupName=group, VPCZoneIdentifier=",".join(subnets)
        )


def resume(aws: Aws, group: str) -> None:
    with calling(f"let {group} launch again"):
        aws.autoscaling.resume_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])


def end(aws: Aws, instances: Sequence[str]) -> None:
    """Terminates instances outright, in a group or not."""
    if not instances:
        return
    try:
        with calling(f"terminate {', '.join(instances)}"):
            aws.ec2.terminate_instances(InstanceIds=list(instances))
    except Rejected as error:
        if error.code != "InvalidInstanceID.NotFound":
            raise
