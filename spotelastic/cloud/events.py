"""Events about a cluster's instances and worker groups, as values.

An adapter makes them of what its cloud says. Events of unknown kinds and unreadable messages are
values too: they are counted and stop nothing.
"""

from dataclasses import dataclass
from typing import Literal

FailureCause = Literal["capacity", "zone", "quota", "limit", "other"]
"""Why a launch failed. "capacity": there is none. "zone": the zone, its subnets or the price there
do not allow it. "quota": the account may not have more such instances. "limit": another limit of
the account. "other": something else.
"""
WARNED_AHEAD = 120.0
"""Seconds of warning that AWS gives before it takes an instance."""


@dataclass(frozen=True, slots=True)
class _Event:
    """Something that has happened `at` this time."""

    id: str
    at: float


@dataclass(frozen=True, slots=True)
class SpotWarning(_Event):
    """The instance will be taken back. The node itself may know the exact time."""

    instance: str
    ahead: float = WARNED_AHEAD
    """Seconds from `at` until it is taken."""
    action: str = ""
    """The cloud's word for what it will do."""


@dataclass(frozen=True, slots=True)
class Rebalance(_Event):
    """The instance is at an elevated risk of interruption."""

    instance: str


@dataclass(frozen=True, slots=True)
class ScheduledChange(_Event):
    """The cloud will interrupt instances, or end them, at a time that it names."""

    instances: tuple[str, ...]
    begins: float
    change: str = ""
    """What tells this change from others; the same in each event about it."""
    action: str = ""
    """The cloud's word for what it will do."""
    ends: bool = False
    """Whether the instances do not come back by themselves."""
    called_off: bool = False
    """Whether it will not happen after all, or is over."""


@dataclass(frozen=True, slots=True)
class BlockEnds(_Event):
    """A reservation of capacity ends, and all instances in it."""

    reservation: str
    begins: float
    """When the first of them is ended."""


@dataclass(frozen=True, slots=True)
class StateChange(_Event):
    """The instance is in another state."""

    instance: str
    state: str
    """An `InstanceState`, or a word that is none."""


@dataclass(frozen=True, slots=True)
class LifecycleAction(_Event):
    """A group waits at a hook before it goes on with the instance."""

    instance: str
    group: str
    transition: str
    """LAUNCHING or TERMINATING."""
    hook: str


@dataclass(frozen=True, slots=True)
class GroupActivity(_Event):
    """A group launched or terminated an instance, or failed to."""

    instance: str
    """The instance; "" if a launch failed before there was one."""
    group: str
    name: str
    """"launch" or "terminate"."""
    succeeded: bool
    message: str = ""
    zone: str = ""
    """The zone that was tried last; "" if the cloud does not say."""
    cause: FailureCause = "other"
    """Why it failed, if it did."""
    limit: str = ""
    """The cloud's word for the limit, where that is the cause."""


@dataclass(frozen=True, slots=True)
class Unknown(_Event):
    """An event of a kind that is not handled."""

    kind: str
    """Its detail-type."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that cannot be read as an event."""

    problem: str
    id: str = ""
    at: float = 0.0


Known = (
    SpotWarning
    | Rebalance
    | ScheduledChange
    | BlockEnds
    | StateChange
    | LifecycleAction
    | GroupActivity
)
CloudEvent = Known | Unknown | Malformed
