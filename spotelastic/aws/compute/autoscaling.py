"""Observes Auto Scaling groups and their instances, and ends instances."""

from collections.abc import Mapping, Sequence
from typing import Any

from spotelastic.aws.base.clients import (
    DENIED,
    Aws,
    Rejected,
    calling,
    listed,
    listed_instances,
    passing,
)
from spotelastic.aws.base.identity import CLUSTER, MEMBER, ROLE, SUBNETS
from spotelastic.cloud.model import GroupMember, Instance, Role, WorkerGroup

ROLES: Mapping[str, Role] = {"worker": "worker", "control": "control"}

NEEDED = {"Launch": "the launches", "Terminate": "the ends of instances"}
"""Processes of a group that the cluster needs, and what they do."""

# -- observe -------------------------------------------------------------------------------------


def group(aws: Aws, name: str) -> WorkerGroup | None:
    """Return the group of that name, or None."""
    return groups(aws, (name,)).get(name)


def groups(aws: Aws, names: Sequence[str]) -> dict[str, WorkerGroup]:
    """Return the groups that exist, by name, with one call."""
    with calling(f"describe the worker groups {', '.join(names)}"):
        answer = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=list(names))
        return {
            item["AutoScalingGroupName"]: _group(item)
            for item in answer["AutoScalingGroups"]
            if not item.get("Status")  # it is being deleted
        }


def _group(item: dict[str, Any]) -> WorkerGroup:
    members = [
        GroupMember(each["InstanceId"], each["LifecycleState"], each["HealthStatus"] == "Healthy")
        for each in item.get("Instances", ())
    ]
    members.sort(key=lambda member: member.instance)
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    suspended = item.get("SuspendedProcesses", ())
    return WorkerGroup(
        item["AutoScalingGroupName"],
        item["DesiredCapacity"],
        tuple(members),
        subnets_of(item.get("VPCZoneIdentifier", "")),
        subnets_of(tags.get(SUBNETS, "")),
        any(map(_by_aws, suspended)),
        any(each["ProcessName"] == "Launch" and not _by_aws(each) for each in suspended),
        tuple(_held(item["AutoScalingGroupName"], each) for each in suspended if _matters(each)),
    )


def _by_aws(suspended: dict[str, Any]) -> bool:
    """Whether AWS itself suspended the launches. A person may have had a reason to."""
    why = suspended.get("SuspensionReason", "")
    return suspended["ProcessName"] == "Launch" and why != "" and not why.startswith("User")


def _matters(suspended: dict[str, Any]) -> bool:
    """Whether a person has suspended what the cluster needs."""
    return suspended["ProcessName"] in NEEDED and not _by_aws(suspended)


def _held(group: str, suspended: dict[str, Any]) -> str:
    name = suspended["ProcessName"]
    return (
        f"somebody has suspended {NEEDED[name]} of the group {group}; `aws autoscaling "
        f"resume-processes --auto-scaling-group-name {group} --scaling-processes {name}` resumes "
        "them"
    )


def subnets_of(listed: str) -> tuple[str, ...]:
    """Split a comma-separated list of subnets."""
    return tuple(filter(None, listed.split(",")))


def instances(aws: Aws, cluster: str, role: str = "") -> tuple[Instance, ...]:
    """Return all instances of the cluster that EC2 still knows, including terminated ones."""
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    if role:
        filters.append({"Name": f"tag:{ROLE}", "Values": [role]})
    with calling(f"describe the instances of {cluster}"):
        return tuple(map(_instance, listed_instances(aws, filters)))


def clusters(aws: Aws) -> frozenset[str]:
    """Return the clusters with a group, an instance or a disk in the account and region."""
    with calling("list the clusters"):
        tagged = [{"Name": "tag-key", "Values": [CLUSTER]}]
        alive = {"Name": "instance-state-name", "Values": ["pending", "running", "stopped"]}
        call, key = "describe_auto_scaling_groups", "AutoScalingGroups"
        found = [
            *listed(aws.autoscaling, call, key, Filters=tagged),
            *listed_instances(aws, [*tagged, alive]),
            *listed(aws.ec2, "describe_volumes", "Volumes", Filters=tagged),
        ]
    return frozenset(
        tag["Value"] for item in found for tag in item.get("Tags", ()) if tag["Key"] == CLUSTER
    )


def _instance(item: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    return Instance(
        id=item["InstanceId"],
        role=ROLES.get(tags.get(ROLE, ""), ""),
        state=item["State"]["Name"],
        type=item["InstanceType"],
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        address=item.get("PrivateIpAddress", ""),
        spot=item.get("InstanceLifecycle") == "spot",
        launched_at=item["LaunchTime"].timestamp(),
        member=tags.get(MEMBER, ""),
        reason=item.get("StateReason", {}).get("Code", ""),
        public=bool(item.get("PublicIpAddress")),
        reservation=item.get("CapacityReservationId", ""),
    )


def console(aws: Aws, instance: str) -> str:
    """Return the console output of the instance, or its end; "" if AWS has nothing yet.

    If the newest output cannot be had, return what AWS recorded by itself, some time after boot and
    at the end. For older instance types, and those that are gone, AWS has nothing else.
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


def end(aws: Aws, instances: Sequence[str]) -> None:
    """Terminate instances, whether in a group or not."""
    if not instances:
        return
    with passing("InvalidInstanceID.NotFound"), calling(f"terminate {', '.join(instances)}"):
        aws.ec2.terminate_instances(InstanceIds=list(instances))
