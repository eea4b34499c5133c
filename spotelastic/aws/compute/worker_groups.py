"""A cluster's worker groups, one of spot and one of on-demand instances, and what they launch.

They are made here and not by the stack, so that a change of min, max or types never replaces
nodes that train. Everything is found again by its name and the cluster's tag, and `ensure` may be
run again at any point: it makes what is missing and changes what differs.

Each group is made at size 0 with a dead man's switch: an action of Auto Scaling that sets it to 0
an hour later, and that the leading controller keeps postponing. When nobody leads, AWS itself
switches the machines off. For the same reason no instance is protected from scale-in.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spotelastic.aws.base.clients import Aws, Busy, Rejected, calling, patient
from spotelastic.aws.base.identity import BUCKET, CLUSTER, ROLE, SUBNETS
from spotelastic.aws.base.infra_files import boot_script
from spotelastic.aws.base.names import SWITCH, TERMINATE_HOOK, Names
from spotelastic.aws.base.waiting import until
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.compute.estimate import WORKER_DISK_GIB
from spotelastic.clock import wall
from spotelastic.errors import EnvironmentFailure, UsageError

DRAIN_TIME = 180
"""Seconds that a terminating instance may take to save before its group goes on without asking."""
UNATTENDED = 3600.0
"""Seconds that the machines of a cluster run on after its last leading controller was seen."""
LEAST_LIMIT = 0.001
"""US dollars an hour: the lowest limit of a spot price that AWS takes."""
DELETE_WITHIN = 120.0
"""Seconds for a group that is launching or ending instances just then."""
DELETABLE_SOON = frozenset({"ResourceContention", "ResourceInUse", "ScalingActivityInProgress"})
"""What Auto Scaling says of such a group."""
UNHEARD_OF = re.compile(
    r"valid fully-formed launch template|launch template.*(does not exist|not found)", re.I
)
"""What it says of a launch template that was made a moment ago, or names what was."""


@dataclass(frozen=True, slots=True)
class WorkerGroups:
    """What a cluster's worker groups are made of."""

    names: Names
    types: tuple[str, ...]
    size: int
    """The most that there may be."""
    spot: bool
    """Which of the two groups has the machines; the other one is there, and empty."""
    image: str
    bucket: str
    profile: str
    """ARN of the instance profile."""
    security_group: str
    subnets: tuple[str, ...]
    """Those that nodes may be in."""
    start: int | None = None
    """What a new group begins with; None: with `size`. Later the controller sizes it."""
    first: tuple[str, ...] = ()
    """Those of them that a new group launches in; empty: all. Later the controller chooses."""
    root_device: str = "/dev/xvda"
    efa_cards: int = 0
    """Network cards to be used with EFA; 0: one ordinary interface."""
    public: bool | None = True
    """Whether a node has a public address; None: as its subnet says."""
    placement_group: str = ""
    max_price: float | None = None
    """US dollars an hour above which there is no spot node of any type; None: as on demand."""


def ensure(aws: Aws, wanted: WorkerGroups) -> None:
    """Makes the launch template and both groups as they are wanted, the one in use last."""
    version = _ensure_template(aws, wanted)
    in_use, other = wanted.names.workers, wanted.names.on_demand
    if not wanted.spot:
        in_use, other = other, in_use
    start = wanted.size if wanted.start is None else wanted.start
    for name, size in ((other, 0), (in_use, start)):
        _ensure_group(aws, wanted, name, size, version)


def postpone(aws: Aws, group: str, until: float) -> None:
    """Sets the group's dead man's switch to `until` (seconds since the epoch)."""
    with calling(f"postpone the dead man's switch of {group}"):
        aws.autoscaling.put_scheduled_update_group_action(
            AutoScalingGroupName=group,
            ScheduledActionName=SWITCH,
            StartTime=datetime.fromtimestamp(until, UTC),
            MinSize=0,
            DesiredCapacity=0,
        )


def image(aws: Aws, its: Names) -> str:
    """What the cluster's nodes boot; "" where there is no launch template of it yet."""
    found = _template(aws, its.workers)
    if found is None or not _is_owned(found.get("Tags", ()), its.cluster):
        return ""
    return str(_latest(aws, its.workers)["LaunchTemplateData"]["ImageId"])


def allow(aws: Aws, group: str, size: int) -> None:
    """Lets the group become so large, if it may not yet."""
    found = _group(aws, group)
    if found is None or found["MaxSize"] >= size:
        return
    with calling(f"let the group {group} have {size} instances"):
        aws.autoscaling.update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=size)


# -- the launch template -------------------------------------------------------------------------


def _ensure_template(aws: Aws, wanted: WorkerGroups) -> str:
    """The version that is as wanted; a new one is made where none is."""
    name, data = wanted.names.workers, _launch(wanted)
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
    found = _template(aws, name)
    if found is None:
        with calling(f"create the launch template {name}"):
            aws.ec2.create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                VersionDescription=digest,
                TagSpecifications=[
                    {"ResourceType": "launch-template", "Tags": [_tag(wanted.names.cluster)]}
                ],
            )
        return "1"
    _check_owner(f"launch template {name}", found.get("Tags", ()), wanted.names.cluster)
    latest = _latest(aws, name)
    if latest.get("VersionDescription") != digest:
        with calling(f"change the launch template {name}"):
            latest = aws.ec2.create_launch_template_version(
                LaunchTemplateName=name, LaunchTemplateData=data, VersionDescription=digest
            )["LaunchTemplateVersion"]
    return str(latest["VersionNumber"])


def _template(aws: Aws, name: str) -> dict[str, Any] | None:
    with calling(f"look for the launch template {name}"):
        named = [{"Name": "launch-template-name", "Values": [name]}]
        found = aws.ec2.describe_launch_templates(Filters=named)["LaunchTemplates"]
    return next(iter(found), None)


def _latest(aws: Aws, name: str) -> dict[str, Any]:
    """The newest version of a launch template."""
    with calling(f"read the launch template {name}"):
        answer = aws.ec2.describe_launch_template_versions(
            LaunchTemplateName=name, Versions=["$Latest"]
        )
    latest: dict[str, Any] = answer["LaunchTemplateVersions"][0]
    return latest


def _launch(wanted: WorkerGroups) -> dict[str, Any]:
    tags = {
        CLUSTER: wanted.names.cluster,
        ROLE: "worker",
        BUCKET: wanted.bucket,
        "Name": wanted.names.workers,
    }
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    data: dict[str, Any] = {
        "ImageId": wanted.image,
        "InstanceType": wanted.types[0],
        "IamInstanceProfile": {"Arn": wanted.profile},
        "UserData": boot_script(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [
            {
                "DeviceName": wanted.root_device,
                "Ebs": {
                    "VolumeSize": WORKER_DISK_GIB,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": pairs} for kind in ("instance", "volume")
        ],
    }
    if wanted.efa_cards:
        data["NetworkInterfaces"] = [_card(index, wanted) for index in range(wanted.efa_cards)]
    else:
        data["SecurityGroupIds"] = [wanted.security_group]
    if wanted.placement_group:
        data["Placement"] = {"GroupName": wanted.placement_group}
    return data


def _card(index: int, wanted: WorkerGroups) -> dict[str, Any]:
    """One EFA interface per network card; only the first one of an instance has device index 0."""
    card = {
        "NetworkCardIndex": index,
        "DeviceIndex": min(index, 1),
        "InterfaceType": "efa",
        "Groups": [wanted.security_group],
        "DeleteOnTermination": True,
    }
    # AWS gives a public address to instances with one interface only.
    if wanted.efa_cards > 1 or wanted.public is None:
        return card
    return {**card, "AssociatePublicIpAddress": wanted.public}


# -- a group -------------------------------------------------------------------------------------


def _passes(error: Rejected | Busy) -> bool:
    """Whether Auto Scaling only has not heard yet of the launch template or of what that names, or
    is changing the group just then."""
    unheard = error.code == "ValidationError" and UNHEARD_OF.search(str(error))
    return bool(unheard) or error.code == "ResourceContention"


def _ensure_group(aws: Aws, wanted: WorkerGroups, name: str, start: int, version: str) -> None:
    """The switch stands before the group may launch anything.

    One that is there keeps its size, which is the controller's: smaller, AWS would choose who goes;
    larger, it would launch what a price or a budget forbids.
    """
    spot = name == wanted.names.workers
    policy = _policy(wanted, version, spot=spot)
    found = _group(aws, name)
    if found is None:
        _create_group(aws, wanted, name, policy)
    else:
        _check_owner(f"group {name}", found.get("Tags", ()), wanted.names.cluster)
        if found.get("Status"):
            raise EnvironmentFailure(
                f"the group {name} is being deleted: wait a minute, and run `spotelastic up` again"
            )
        _tag_subnets(aws, wanted, name, found)
    _keep_in_zones(aws, name)
    _set_switch(aws, name)
    size = start if found is None else found["DesiredCapacity"]
    sizes = {"MinSize": 0, "MaxSize": max(wanted.size, size)}
    if found is None:
        sizes["DesiredCapacity"] = start
    subnets = ",".join(_launched_in(wanted, found))
    _set_group(aws, name, size, **sizes, MixedInstancesPolicy=policy, VPCZoneIdentifier=subnets)


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
    """A group that is there stays where the controller has put it."""
    if not wanted.first:
        return wanted.subnets
    now = autoscaling.subnets_of(found["VPCZoneIdentifier"]) if found else ()
    return tuple(subnet for subnet in now if subnet in wanted.subnets) or wanted.first


@patient(_passes)
def _tag_subnets(aws: Aws, wanted: WorkerGroups, name: str, found: dict[str, Any]) -> None:
    tag = _subnets_tag(wanted)
    if any(each["Key"] == SUBNETS and each["Value"] == tag["Value"] for each in found["Tags"]):
        return
    with calling(f"note the subnets of the group {name}"):
        aws.autoscaling.create_or_update_tags(
            Tags=[
                {
                    **tag,
                    "PropagateAtLaunch": False,
                    "ResourceId": name,
                    "ResourceType": "auto-scaling-group",
                }
            ]
        )


def _subnets_tag(wanted: WorkerGroups) -> dict[str, str]:
    return {"Key": SUBNETS, "Value": ",".join(wanted.subnets)}


def _group(aws: Aws, name: str) -> dict[str, Any] | None:
    with calling(f"look for the group {name}"):
        found = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    return next(iter(found["AutoScalingGroups"]), None)


@patient(_passes)
def _create_group(aws: Aws, wanted: WorkerGroups, name: str, policy: dict[str, Any]) -> None:
    with calling(f"create the group {name}"):
        aws.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=wanted.size,
            DesiredCapacity=0,
            VPCZoneIdentifier=",".join(_launched_in(wanted, None)),
            MixedInstancesPolicy=policy,
            CapacityRebalance=False,  # it would end instances on its own judgement
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
                for tag in (_tag(wanted.names.cluster), _subnets_tag(wanted))
            ],
        )


def _policy(wanted: WorkerGroups, version: str, *, spot: bool) -> dict[str, Any]:
    # AWS keeps a limit that an update does not name: the empty one takes it away.
    limit = "" if wanted.max_price is None else f"{max(LEAST_LIMIT, wanted.max_price):f}"
    return {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": {
                "LaunchTemplateName": wanted.names.workers,
                "Version": version,
            },
            "Overrides": [{"InstanceType": name} for name in wanted.types],
        },
        "InstancesDistribution": {
            "OnDemandBaseCapacity": 0,
            "OnDemandPercentageAboveBaseCapacity": 0 if spot else 100,
            "SpotAllocationStrategy": "price-capacity-optimized",
            **({"SpotMaxPrice": limit} if spot else {}),
        },
    }


def _tag(cluster: str) -> dict[str, str]:
    return {"Key": CLUSTER, "Value": cluster}


def _check_owner(what: str, tags: Sequence[dict[str, str]], cluster: str) -> None:
    """Raises `UsageError` for a resource of this name that is not the cluster's."""
    if not _is_owned(tags, cluster):
        raise UsageError(
            f"the {what} exists already and is not of the cluster {cluster}: delete it, or choose "
            "another --name"
        )


def _is_owned(tags: Sequence[dict[str, str]], cluster: str) -> bool:
    return any(tag["Key"] == CLUSTER and tag["Value"] == cluster for tag in tags)


# -- their end -----------------------------------------------------------------------------------


def delete(aws: Aws, its: Names) -> None:
    """Deletes the groups with their instances, without waiting at hooks; absence is no error."""
    for name in (its.workers, its.on_demand):
        delete_group(aws, name, its.cluster)


def delete_group(aws: Aws, name: str, cluster: str) -> None:
    """Must never happen: a group of somebody else's that has the name goes, with its instances."""

    def asked() -> bool | None:
        found = _group(aws, name)
        if found is None or found.get("Status") or not _is_owned(found.get("Tags", ()), cluster):
            return True
        try:
            with calling(f"delete the group {name}"):
                aws.autoscaling.delete_auto_scaling_group(
                    AutoScalingGroupName=name, ForceDelete=True
                )
        except (Rejected, Busy) as error:
            if error.code in DELETABLE_SOON:
                return None
            if error.code != "ValidationError":  # gone meanwhile
                raise
        return True

    until(asked, f"the group {name} is busy", DELETE_WITHIN)


def delete_template(aws: Aws, its: Names) -> None:
    found = _template(aws, its.workers)
    if found is None or not _is_owned(found.get("Tags", ()), its.cluster):
        return
    try:
        with calling(f"delete the launch template {its.workers}"):
            aws.ec2.delete_launch_template(LaunchTemplateId=found["LaunchTemplateId"])
    except Rejected as error:
        if not error.code.startswith("InvalidLaunchTemplate"):  # gone meanwhile
            raise
