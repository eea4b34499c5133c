"""Tells whether the control nodes of a new cluster come, by what Auto Scaling says of them.

Must never happen: workers that are paid for wait for control nodes that cannot start. So where no
cluster has worked before, workers are launched when a control node leads; and a cluster whose
control nodes do not come is ended.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from spotelastic import __version__
from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.compute import autoscaling
from spotelastic.cloud.model import IN_SERVICE, WorkerGroup
from spotelastic.errors import Unavailable
from spotelastic.model.counting import duration

REFUSED_FOR, SILENT_FOR = 180.0, 600.0
"""Seconds after which control nodes are given up whose launches all fail, and whatever they do."""
_WORKED = f"_worked/{__version__}"
"""Key of the object that says that a cluster of this version has worked here. No cluster's name
begins so.
"""

_OVER = frozenset({"Successful", "Failed", "Cancelled"})
"""States of an activity that is over."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The group of one control node."""

    running: int
    """Instances in service."""
    failure: str = ""
    """What AWS says of its last launch, if that has failed."""


def groups(aws: Aws, cluster: str) -> Mapping[str, WorkerGroup]:
    """Return the groups of a cluster's control nodes, by name."""
    return autoscaling.groups(aws, [Names(cluster).control(member) for member in MEMBERS])


def look(aws: Aws, cluster: str) -> tuple[ControlGroup, ...]:
    """Look at the groups of a cluster's control nodes."""
    return tuple(_seen(aws, group) for group in groups(aws, cluster).values())


def _seen(aws: Aws, group: WorkerGroup) -> ControlGroup:
    with calling(f"look at the launches of {group.name}"):
        said = aws.autoscaling.describe_scaling_activities(
            AutoScalingGroupName=group.name, MaxRecords=5
        )["Activities"]
    # A launch that was cancelled is followed by the next one, which is still under way.
    over = [each for each in said if each["StatusCode"] in _OVER]
    failed = over and over[0]["StatusCode"] != "Successful"
    return ControlGroup(
        sum(member.state == IN_SERVICE for member in group.members),
        str(over[0].get("StatusMessage", over[0]["StatusCode"])) if failed else "",
    )


def hopeless(groups: Sequence[ControlGroup], waited: float) -> str:
    """Return why no control node will lead; empty while one may (pure).

    `waited`: seconds since they were asked for.
    """
    refused = [each for each in groups if each.failure and not each.running]
    if waited < (REFUSED_FOR if len(refused) * 2 > len(groups) else SILENT_FOR):
        return ""
    running = sum(bool(each.running) for each in groups)
    said = "; ".join(dict.fromkeys(each.failure for each in refused))
    lasted = duration(round(waited / 60.0) * 60.0)
    return f"no control node has reported for {lasted}; {running} of {len(groups)} run" + (
        f". AWS says: {said}" if said else ""
    )


def has_worked(aws: Aws, bucket: str) -> bool:
    """Return whether a cluster of this version has worked in this account and region."""
    with suppress(Rejected), calling("look for clusters of before"):
        aws.s3.head_object(Bucket=bucket, Key=_WORKED)
        return True
    return False


def note_worked(aws: Aws, bucket: str) -> None:
    """Note that a cluster of this version works here.

    Without the right to do so, or where the bucket does not answer, the next cluster is made as the
    first one.
    """
    with suppress(Rejected, Unavailable), calling("note that the cluster works"):
        aws.s3.put_object(Bucket=bucket, Key=_WORKED, Body=b"")
