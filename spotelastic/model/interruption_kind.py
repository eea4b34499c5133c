"""The kinds of interruption, and what the rest of the product does about each of them.

A new kind is one member and one entry of `_TRAITS`. Whatever observes it makes a `Notice` or an
`Event` of that kind; rounds, checkpoints, the report and the tables go by its traits.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import partial


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
        return _TRAITS[self] if self.is_known else _unknown(self)


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
    """Seconds before its deadline at which a node drains; infinite: as soon as it is told."""
    is_replaced_ahead: bool = False
    """Whether the cluster replaces the node before that, at a time when nothing else is missing."""
    is_asked_for: bool = False
    """The cluster or its user wants it, so nothing ends the node by force."""
    severity: int = 0
    """How much it disturbs training: of several at once the most severe answers for the pause."""


def _unknown(kind: InterruptionKind) -> InterruptionTraits:
    label = kind.value.replace("_", " ")
    return InterruptionTraits(label, drains=True, has_deadline=True, severity=1)


_announced = partial(
    InterruptionTraits, drains=True, has_deadline=True, ahead=DRAINS_AHEAD, severity=1
)
"""Makes the traits of what is announced hours or days ahead."""
_TRAITS = {
    InterruptionKind.SPOT_INTERRUPTION: InterruptionTraits(
        "spot notice", drains=True, has_deadline=True, severity=1
    ),
    InterruptionKind.MAINTENANCE: _announced(
        "maintenance", outlook="will be rebooted, or cut off for a while", is_replaced_ahead=True
    ),
    InterruptionKind.RETIREMENT: _announced(
        "retirement", outlook="will be stopped for good", is_replaced_ahead=True
    ),
    # Another node of a block would end with it.
    InterruptionKind.CAPACITY_BLOCK: _announced(
        "block ends", outlook="will be ended with its Capacity Block"
    ),
    InterruptionKind.REBALANCE: InterruptionTraits(
        "rebalance", "rebalance", "may be interrupted soon"
    ),
    InterruptionKind.PLANNED: InterruptionTraits(
        "planned",
        outlook="will be ended by its group, which waits until it has left",
        drains=True,
        has_deadline=True,
        is_asked_for=True,
    ),
    InterruptionKind.LEAVE: InterruptionTraits(
        "asked to leave", "leave", "was asked to leave", drains=True, is_asked_for=True
    ),
    InterruptionKind.UNHEALTHY: InterruptionTraits(
        *("sick node", "unhealthy", "is sick: it leaves by itself"),
        drains=True,
        at_once=True,
        severity=2,
    ),
    InterruptionKind.BY_HAND: InterruptionTraits("ended by hand", "loss", severity=3),
    InterruptionKind.LOSS: InterruptionTraits("node lost", "loss", severity=3),
    InterruptionKind.WORKER: InterruptionTraits("worker died", "failure", severity=2),
    InterruptionKind.ETCD: InterruptionTraits("etcd died", "etcd"),
    InterruptionKind.MOVED: InterruptionTraits("moved"),
}
