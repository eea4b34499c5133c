"""Puts a cluster to sleep in a region, and wakes it: a cluster asleep has no instances.

A job that moves between regions by itself has a cluster in each of them, and is in one. What the
others have costs next to nothing: a stack with the network, roles, queues and three small disks,
and groups of size 0. To wake one takes no right but that of setting the sizes of its own groups.

Must never happen: workers stay when the controllers are gone. So their groups are emptied first,
and the controller that calls this for its own cluster ends last.
"""

from spotelastic.aws.base.clients import Aws, calling, passing
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.clusters import control_boot
from spotelastic.errors import EnvironmentFailure

GONE = "ValidationError"
"""Auto Scaling's code for a change of a group that does not exist."""


def is_awake(aws: Aws, name: str) -> bool:
    """Whether any group of control nodes of the cluster should have an instance."""
    return any(group.desired > 0 for group in control_boot.groups(aws, name).values())


def wake(aws: Aws, name: str) -> None:
    """Start the control nodes, whose controllers start the workers."""
    groups = control_boot.groups(aws, name)
    if not groups:
        raise EnvironmentFailure(f"{name} has no control nodes in {aws.region}: run `up` again")
    for group in groups:
        _resize(aws, group, 1)


def put_to_sleep(aws: Aws, name: str, own: str = "") -> None:
    """End all instances. `own`: the member whose control node calls this, which is ended last."""
    its = Names(name)
    for group in (its.workers, its.on_demand):
        _resize(aws, group, 0)
    for member in sorted(MEMBERS, key=lambda each: each == own):
        _resize(aws, its.control(member), 0)


def _resize(aws: Aws, group: str, size: int) -> None:
    """Set the least and the wanted size of a group. One that does not exist has no instances."""
    with passing("" if size else GONE), calling(f"set the size of {group} to {size}"):
        aws.autoscaling.update_auto_scaling_group(
            AutoScalingGroupName=group, MinSize=size, DesiredCapacity=size
        )
