"""Ends what a run on a real account has launched, also if the machine that began it has gone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.base.names import MEMBERS, Names

ENDS_AFTER = 5400.0
"""Seconds after which nothing that a run has launched may cost anything more."""
ACTION = "first-run-guard"


def groups(cluster: str) -> Iterator[str]:
    its = Names(cluster)
    return chain((its.workers, its.on_demand), map(its.control, MEMBERS))


def guard(aws: Aws, cluster: str, until: float) -> list[str]:
    """Has Auto Scaling empty every group of the cluster at that time, control nodes too.

    What stays are the etcd members' three disks (0.08 USD a GiB and month) and, where nodes have
    several network cards, a NAT gateway (0.045 USD an hour): only `down` ends these. Returns the
    groups that are there.
    """
    found = []
    for group in groups(cluster):
        try:
            with calling(f"guard {group}"):
                aws.autoscaling.put_scheduled_update_group_action(
                    AutoScalingGroupName=group,
                    ScheduledActionName=ACTION,
                    StartTime=datetime.fromtimestamp(until, UTC),
                    MinSize=0,
                    MaxSize=0,
                    DesiredCapacity=0,
                )
        except Rejected as error:
            if error.code != "ValidationError":  # there is no such group
                raise
        else:
            found.append(group)
    return found
