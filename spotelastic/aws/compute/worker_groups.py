"""Manages a cluster's two worker groups (spot and on-demand) and its launch template.

It creates, changes and deletes them.

They are not part of the stack, so that a change of min, max or types never replaces nodes that
train. They are found by name and the cluster's tag. `ensure` can be repeated at any point: it
creates what is missing and changes what differs.

Each group is created with size 0 and a dead man's switch. This scheduled action sets its size to
0 an hour later, and that the leading controller keeps postponing. If no controller leads, AWS
itself ends the instances. For the same reason no instance is protected from scale-in.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from spotelastic.aws.base.clients import (
    DENIED,
    Aws,
    Busy,
    Rejected,
    calling,
    listed,
    passing,
    patient,
)
from spotelastic.aws.base.demands import pairs_of
from spotelastic.aws.base.identity import CLUSTER, SUBNETS
from spotelastic.aws.base.names import SWITCH, TERMINATE_HOOK, Names
from spotelastic.aws.base.waiting import until
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.compute.images import RootDisk
from spotelastic.aws.compute.launch_template import WorkerGroups, launch_template
from spotelastic.clock import wall
from spotelastic.cloud.model import UNATTENDED
from spotelastic.errors import EnvironmentFailure, UsageError

T = TypeVar("T")

DRAIN_TIME = 180
"""Seconds that a terminating instance may take to save before its group goes on anyway."""
LEAST_LIMIT = 0.001
"""Lowest limit of a spot price that AWS accepts, in US dollars an hour."""
DELETE_WITHIN = 120.0
"""Seconds to wait for a group that is just launching or ending instances."""
GONE = "InvalidLaunchTemplate"
"""Beginning of the codes of no such launch template. One that was deleted may be listed a while."""
DELETABLE_SOON = frozenset({"ResourceContention", "ResourceInUse", "ScalingActivityInProgress"})
"""Error codes of Auto Scaling for such a group."""
UNHEARD_OF = re.compile(
    r"valid fully-formed launch template|launch template.*(does not exist|not found)", re.I
)
"""Recognizes Auto Scaling's error about a launch template that it does not know yet."""


def ensure(aws: Aws, wanted: WorkerGroups) -> None:
    """Create or update the launch template and both groups, that of spot instances last."""
    version = on_demand = _ensure_template(aws, wanted, spot=True)
    if wanted.own_tags or wanted.reservations:
        on_demand = _ensure_template(aws, wanted, spot=False)
    _ensure_group(aws, wanted, wanted.names.on_demand, wanted.reserved_start, on_demand)
    _ensure_group(aws, wanted, wanted.names.workers, wanted.start, version)


def postpone(aws: Aws, group: str, until: float) -> None:
    """Set the group's dead man's switch to `until` (seconds since the epoch)."""
    with calling(f"postpone the dead man's switch of {group}"):
        aws.autoscaling.put_scheduled_update_group_action(
            AutoScalingGroupName=group,
            ScheduledActionName=SWITCH,
            StartTime=datetime.fromtimestamp(until, UTC),
            MinSize=0,
            DesiredCapacity=0,
        )


def image(aws: Aws, its: Names) -> str:
    """Return the image of the cluster's nodes; "" if there is no launch template yet."""
    return str(_data(aws, its).get("ImageId", ""))


def root_disk(aws: Aws, its: Names) -> RootDisk | None:
    """Return the root disk of the cluster's workers; None if there is no launch template yet."""
    for mapping in _data(aws, its).get("BlockDeviceMappings", ()):
        return RootDisk(mapping["DeviceName"], mapping["Ebs"]["VolumeSize"])
    return None


def _data(aws: Aws, its: Names) -> dict[str, Any]:
    """Return the data of the cluster's launch template; nothing if there is none yet."""
    with passing(GONE), calling(f"read the launch template {its.workers}"):
        (version,) = aws.ec2.describe_launch_template_versions(
            LaunchTemplateName=its.workers, Versions=["$Latest"]
        )["LaunchTemplateVersions"]
        data: dict[str, Any] = version["LaunchTemplateData"]
        return data
    return {}


def allow(aws: Aws, group: str, size: int) -> None:
    """Raise the group's largest size to `size`, if it is lower."""
    found = _group(aws, group)
    if found is None or found["MaxSize"] >= size:
        return
    with calling(f"let the group {group} have {size} instances"):
        aws.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=size)


# -- the launch template -------------------------------------------------------------------------


def _is_there(error: Rejected | Busy) -> bool:
    """Whether AWS has something that it does not show yet: an `up` before has just made it."""
    return error.code in ("AlreadyExists", "InvalidLaunchTemplateName.AlreadyExistsException")


@patient(_is_there)
def _ensure_template(aws: Aws, wanted: WorkerGroups, *, spot: bool) -> str:
    """Return the version of the launch template that is as wanted; create one if none is.

    All of its versions have the same image and the same disk.
    """
    name, data = wanted.names.workers, launch_template(wanted, spot=spot)
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
    found = _template(aws, name)
    versions = _versions(aws, name) if found else None
    if found is None or versions is None:
        return _create_template(aws, wanted, data, digest)
    _check_owner(f"launch template {name}", found.get("Tags", ()), wanted.names.cluster)
    same = [each for each in versions if each.get("VersionDescription") == digest]
    version = max(same, key=lambda each: int(each["VersionNumber"]), default=None)
    if version is None:
        with calling(f"change the launch template {name}"):
            version = aws.ec2.create_launch_template_version(
                LaunchTemplateName=name, LaunchTemplateData=data, VersionDescription=digest
            )["LaunchTemplateVersion"]
    return str(version["VersionNumber"])


def _versions(aws: Aws, name: str) -> list[dict[str, Any]] | None:
    """Return all versions of a launch template; None if there is no such template (any more)."""
    with passing(GONE), calling(f"read the versions of the launch template {name}"):
        call, key = "describe_launch_template_versions", "LaunchTemplateVersions"
        return list(listed(aws.ec2, call, key, LaunchTemplateName=name))
    return None


def _create_template(aws: Aws, wanted: WorkerGroups, data: dict[str, Any], digest: str) -> str:
    """Create the launch template; return the number of its first version."""
    name = wanted.names.workers
    tags = [_tag(wanted.names.cluster), *pairs_of(wanted.own_tags)]
    with calling(f"create the launch template {name}"):
        aws.ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData=data,
            VersionDescription=digest,
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
        )
    return "1"


def _template(aws: Aws, name: str) -> dict[str, Any] | None:
    with calling(f"look for the launch template {name}"):
        named = [{"Name": "launch-template-name", "Values": [name]}]
        found = aws.ec2.describe_launch_templates(Filters=named)["LaunchTemplates"]
    return next(iter(found), None)


# -- a group -------------------------------------------------------------------------------------


def _passes(error: Rejected | Busy) -> bool:
    """Whether Auto Scaling does not know the launch template yet, or is changing the group."""
    unheard = error.code == "ValidationError" and UNHEARD_OF.search(str(error))
    return bool(unheard) or error.code == "ResourceContention"


@patient(_is_there)
def _ensure_group(aws: Aws, wanted: WorkerGroups, name: str, start: int, version: str) -> None:
    """Create or update a group; its switch is set before it may launch anything.

    An existing group keeps its size, which belongs to the controller. If it were smaller, AWS would
    choose the instances to end. If it were larger, it would launch what a price or a budget
    forbids.
    """
    spot = name == wanted.names.workers
    found = _group(aws, name)
    bought = _purchase(wanted, version, found or {}, spot=spot)
    if found is None:
        _create_group(aws, wanted, name, bought)
    else:
        _check_owner(f"group {name}", found.get("Tags", ()), wanted.names.cluster)
        if found.get("Status"):
            raise EnvironmentFailure(
                f"the group {name} is being deleted: wait a minute, and run `spotelastic up` again"
            )
        _ensure_tags(aws, wanted, name, found)
    _keep_in_zones(aws, name)
    _set_switch(aws, name)
    size = start if found is None else found["DesiredCapacity"]
    sizes = {"MinSize": 0, "MaxSize": max(wanted.size, size)}
    if found is None:
        sizes["DesiredCapacity"] = start
    reserved = () if spot else wanted.reserved_subnets
    subnets = ",".join(reserved or _launched_in(wanted, found))
    _set_group(aws, name, size, **sizes, **bought, VPCZoneIdentifier=subnets)


@patient(_passes)
def _keep_in_zones(aws: Aws, name: str) -> None:
    with calling(f"keep the group {name} from moving nodes between zones"):
        aws.autoscaling.suspend_processes(
            AutoScalingGroupName=name, ScalingProcesses=["AZRebalance"]
        )


@patient(_passes)
def _set_switch(aws: Aws, name: str) -> None:
    postpone(aws, name, wall() + UNATTENDED)


@patient(_passes)
def _set_group(aws: Aws, name: str, size: int, **changes: Any) -> None:
    with calling(f"set the group {name} to {size}"):
        aws.autoscaling.update_auto_scaling_group(AutoScalingGroupName=name, **changes)


def _launched_in(wanted: WorkerGroups, found: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the subnets to launch in. An existing group stays where the controller put it."""
    if not wanted.first:
        return wanted.subnets
    now = autoscaling.subnets_of(found["VPCZoneIdentifier"]) if found else ()
    return tuple(subnet for subnet in now if subnet in wanted.subnets) or wanted.first


@patient(_passes)
def _ensure_tags(aws: Aws, wanted: WorkerGroups, name: str, found: dict[str, Any]) -> None:
    """Set the tags of an existing group where they differ. Those that others have set stay."""
    has = {each["Key"]: each["Value"] for each in found["Tags"]}
    its = [_subnets_tag(wanted), *pairs_of(wanted.own_tags)]
    its = [each for each in its if has.get(each["Key"]) != each["Value"]]
    group = {"ResourceId": name, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}
    if its:
        with calling(f"set the tags of the group {name}"):
            aws.autoscaling.create_or_update_tags(Tags=[tag | group for tag in its])


def _subnets_tag(wanted: WorkerGroups) -> dict[str, str]:
    return {"Key": SUBNETS, "Value": ",".join(wanted.subnets)}


def _group(aws: Aws, name: str) -> dict[str, Any] | None:
    with calling(f"look for the group {name}"):
        found = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return next(iter(found["AutoScalingGroups"]), None)


@patient(_passes)
def _create_group(aws: Aws, wanted: WorkerGroups, name: str, bought: dict[str, Any]) -> None:
    with calling(f"create the group {name}"):
        aws.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=wanted.size,
            DesiredCapacity=0,
            VPCZoneIdentifier=",".join(_launched_in(wanted, None)),
            **bought,
            CapacityRebalance=False,  # it would end instances without asking the controller
            NewInstancesProtectedFromScaleIn=False,  # the dead man's switch must reach all
            HealthCheckType="EC2",
            LifecycleHookSpecificationList=[
                {
                    "LifecycleHookName": TERMINATE_HOOK,
                    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
                    "HeartbeatTimeout": DRAIN_TIME,
                    "DefaultResult": "CONTINUE",
                }
            ],
            Tags=[
                {**tag, "PropagateAtLaunch": False}
                for tag in (
                    _tag(wanted.names.cluster),
                    _subnets_tag(wanted),
                    *pairs_of(wanted.own_tags),
                )
            ],
        )


def _purchase(
    wanted: WorkerGroups, version: str, found: Mapping[str, Any], *, spot: bool
) -> dict[str, Any]:
    """Return what the group launches, and as what it is bought.

    Auto Scaling takes reservations as the target of a group. For those that have a market of their
    own the launch template names it, which a group of several types and purchases cannot have.
    """
    template = {"LaunchTemplateName": wanted.names.workers, "Version": version}
    if wanted.reservations and not spot:
        first = "first" if wanted.buys else "only"
        ids = [each.id for each in wanted.reservations]
        return {
            "LaunchTemplate": template,
            "CapacityReservationSpecification": {
                "CapacityReservationPreference": f"capacity-reservations-{first}",
                "CapacityReservationTarget": {"CapacityReservationIds": ids},
            },
        }
    # AWS keeps a limit that an update does not mention; an empty one removes it.
    limit = "" if wanted.max_price is None else f"{max(LEAST_LIMIT, wanted.max_price):f}"
    policy = {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": template,
            "Overrides": [{"InstanceType": name} for name in wanted.types],
        },
        "InstancesDistribution": {
            "OnDemandBaseCapacity": 0,
            "OnDemandPercentageAboveBaseCapacity": 0 if spot else 100,
            "SpotAllocationStrategy": (
                "capacity-optimized-prioritized" if wanted.in_order else "price-capacity-optimized"
            ),
            **({"SpotMaxPrice": limit} if spot else {}),
        },
    }
    left = {"CapacityReservationPreference": "default"}  # where there were reservations before
    reset = "CapacityReservationSpecification" in found
    return {
        "MixedInstancesPolicy": policy,
        **({"CapacityReservationSpecification": left} if reset else {}),
    }


def _tag(cluster: str) -> dict[str, str]:
    return {"Key": CLUSTER, "Value": cluster}


def _check_owner(what: str, tags: Sequence[dict[str, str]], cluster: str) -> None:
    """Raise `UsageError` for a resource of this name that does not belong to the cluster."""
    if not _is_owned(tags, cluster):
        raise UsageError(
            f"the {what} already exists and does not belong to the cluster {cluster}: delete it, "
            "or choose another --name"
        )


def _is_owned(tags: Sequence[dict[str, str]], cluster: str) -> bool:
    return any(tag["Key"] == CLUSTER and tag["Value"] == cluster for tag in tags)


# -- their end -----------------------------------------------------------------------------------


def delete(aws: Aws, its: Names, *, unseen: bool = False) -> None:
    """Delete the groups with their instances, without waiting at hooks. Absence is not an error.

    What was created just now may not be shown yet. With `unseen`, that is deleted as well.
    """
    for name in (its.workers, its.on_demand):
        delete_group(aws, name, its.cluster, unseen=unseen)


def delete_group(aws: Aws, name: str, cluster: str, *, unseen: bool = False) -> None:
    """Delete one group with its instances.

    A group of that name that does not belong to the cluster is left alone.
    """

    def asked() -> bool | None:
        found = _group(aws, name)
        if found is None and not unseen:
            return True
        if found and (found.get("Status") or not _is_owned(found.get("Tags", ()), cluster)):
            return True
        try:
            with calling(f"delete the group {name}"):
                aws.autoscaling.delete_auto_scaling_group(
                    AutoScalingGroupName=name, ForceDelete=True
                )
        except (Rejected, Busy) as error:
            if error.code in DELETABLE_SOON:
                return None
            # AWS denies what it does not show: a right to what has our tag is none to nothing.
            if error.code not in ("ValidationError", *(() if found else DENIED)):
                raise
        return True

    until(asked, f"the group {name} is busy", DELETE_WITHIN)


def delete_template(aws: Aws, its: Names, *, unseen: bool = False) -> None:
    """Delete the launch template, if it belongs to the cluster. `unseen` as in `delete`."""
    found = _template(aws, its.workers)
    if found is None and not unseen:
        return
    if found and not _is_owned(found.get("Tags", ()), its.cluster):
        return
    shown = {"LaunchTemplateId": found["LaunchTemplateId"]} if found else {}
    which = shown or {"LaunchTemplateName": its.workers}
    absent = () if found else DENIED  # as of a group
    with passing(GONE, *absent), calling(f"delete the launch template {its.workers}"):
        aws.ec2.delete_launch_template(**which)
