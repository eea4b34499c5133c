"""The kinds of interruption, and what the rest of the product does about each of them.

A new kind is one member and one entry of `_traits`. Whatever observes it makes a `Notice` or an
`Event` of that kind; rounds, checkpoints, the report and the tables go by its traits.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import assert_never


class InterruptionKind(StrEnum):
    """Why a node stops training, or may have to soon.

    A word that this version does not know, as a newer node may write it, is kept as it is: it is
    treated as a notice of which only the deadline is known (see `is_known`).
    """

    SPOT_INTERRUPTION = "spot_interruption"
    """AWS takes the instance back, and has said when."""
    MAINTENANCE = "maintenance"
    """AWS will reboot the instance, or interrupt its network or power, at a time that it names."""
    RETIREMENT = "retirement"
    """AWS will stop the instance, or retire it, at a time that it names."""
    CAPACITY_BLOCK = "capacity_block"
    """The Capacity Block ends in which the instance runs."""
    REBALANCE = "rebalance"
    """AWS recommends leaving the instance; nothing is certain yet."""
    PLANNED = "planned"
    """The cluster gives the node up: for a smaller job, another zone or cheaper nodes."""
    LEAVE = "leave"
    """A signal or a command has asked the node to leave."""
    UNHEALTHY = "unhealthy"
    """A GPU of the node is sick, or the node always fails first; it leaves, and is replaced."""
    BY_HAND = "by_hand"
    """Somebody has stopped or terminated the instance, without the cluster."""
    LOSS = "loss"
    """The node vanished without a warning."""
    WORKER = "worker"
    """A worker process failed; its node stays."""
    ETCD = "etcd"
    """A member of etcd was away; training goes on."""
    MOVED = "moved"
    """The job was moved to another region. No node has this kind; the report has a row of it."""

    @classmethod
    def _missing_(cls, value: object) -> "InterruptionKind | None":
        if not isinstance(value, str):
            return None
        kind = str.__new__(cls, value)
        kind._name_, kind._value_ = value, value
        return kind

    @property
    def is_known(self) -> bool:
        return self in type(self).__members__.values()

    @property
    def traits(self) -> "InterruptionTraits":
        return _traits(self)


DRAINS_AHEAD = 120.0
"""Seconds before a scheduled end at which a node drains: as long as AWS warns of a spot node's."""


@dataclass(frozen=True, slots=True)
class InterruptionTraits:
    """What follows from a kind of interruption."""

    label: str
    """For people, in a table or a legend."""
    event: str = "notice"
    """The `Event.kind` under which observers record it."""
    outlook: str = "will be taken away"
    """What a notice of it says of the node, for people."""
    drains: bool = False
    """The node is to leave the next round, and is given the time to do so."""
    has_deadline: bool = False
    """The node may train until its notice's deadline. One that drains without leaves at once."""
    at_once: bool = False
    """Nobody waits for a save with the node: its workers have ended, or are not to be relied on."""
    ahead: float = math.inf
    """Seconds before its deadline at which a node drains; infinite: as soon as it is told. What is
    days away is only announced until then.
    """
    is_replaced_ahead: bool = False
    """Whether the cluster replaces the node before that, at a time when nothing else is missing."""
    is_asked_for: bool = False
    """The cluster or its user wants it, so nothing ends the node by force."""
    severity: int = 0
    """How much it disturbs training: of several at once the most severe answers for the pause."""


@cache
def _traits(kind: InterruptionKind) -> InterruptionTraits:
    if not kind.is_known:
        label = kind.value.replace("_", " ")
        return InterruptionTraits(label, drains=True, has_deadline=True, severity=1)
    match kind:
        case InterruptionKind.SPOT_INTERRUPTION:
            return InterruptionTraits("spot notice", drains=True, has_deadline=True, severity=1)
        case (
            InterruptionKind.MAINTENANCE
            | InterruptionKind.RETIREMENT
            | InterruptionKind.CAPACITY_BLOCK
        ):
            return _scheduled(kind)
        case InterruptionKind.REBALANCE:
            return InterruptionTraits("rebalance", "rebalance", "may be interrupted soon")
        case InterruptionKind.PLANNED:
            outlook = "will be ended by its group, which waits until it has left"
            return InterruptionTraits(
                "planned", outlook=outlook, drains=True, has_deadline=True, is_asked_for=True
            )
        case InterruptionKind.LEAVE:
            return InterruptionTraits(
                "asked to leave", "leave", "was asked to leave", drains=True, is_asked_for=True
            )
        case InterruptionKind.UNHEALTHY:
            outlook = "is sick: it leaves by itself"
            return InterruptionTraits(
                "sick GPU", "unhealthy", outlook, drains=True, at_once=True, severity=2
            )
        case InterruptionKind.BY_HAND:
            return InterruptionTraits("ended by hand", "loss", severity=3)
        case InterruptionKind.LOSS:
            return InterruptionTraits("node lost", "loss", severity=3)
        case InterruptionKind.WORKER:
            return InterruptionTraits("worker died", "failure", severity=2)
        case InterruptionKind.ETCD | InterruptionKind.MOVED:
            return _OF_NO_NODE[kind]
        case _:
            assert_never(kind)


_OF_NO_NODE = {
    InterruptionKind.ETCD: InterruptionTraits("etcd died", "etcd"),
    InterruptionKind.MOVED: InterruptionTraits("moved"),
}
_OUTLOOKS = {
    InterruptionKind.MAINTENANCE: ("maintenance", "will be rebooted, or cut off for a while"),
    InterruptionKind.RETIREMENT: ("retirement", "will be stopped for good"),
    InterruptionKind.CAPACITY_BLOCK: ("block ends", "will be ended with its Capacity Block"),
}


def _scheduled(kind: InterruptionKind) -> InterruptionTraits:
    """Return the traits of what is announced hours or days ahead."""
    label, outlook = _OUTLOOKS[kind]
    return InterruptionTraits(
        label,
        outlook=outlook,
        drains=True,
        has_deadline=True,
        ahead=DRAINS_AHEAD,
        # Another node of a block would end with it.
        is_replaced_ahead=kind is not InterruptionKind.CAPACITY_BLOCK,
        severity=1,
    )
