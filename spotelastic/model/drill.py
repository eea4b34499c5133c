"""Dataclasses that tell of a drill under way: what it has yet to cause.

The process that carries the drill out writes them into the bucket; `status` and the dashboard show
them.
"""

from dataclasses import dataclass

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion

STALE = 30.0
"""Seconds after which a drill counts as ended, though nobody said so: its process was killed."""


@dataclass(frozen=True, slots=True)
class DueInterruption:
    """An interruption that a drill has yet to cause. It waits for those before it in any case."""

    kind: InterruptionKind
    whom: str
    """For people: a node, or how it will be chosen."""
    step: int | None = None
    """The step from which it is due; None: not by a step."""
    at: float | None = None
    """When it is due, in seconds since the epoch; None: not by a time. Without either: it is not
    known before the job has recovered from the one before.
    """


@dataclass(frozen=True, slots=True)
class RemainingDrill:
    """How far a drill is, as the process that carries it out wrote it last."""

    at: float
    """When it was written, in seconds since the epoch."""
    caused: int
    """Number of interruptions that it has caused."""
    due: tuple[DueInterruption, ...]
    """Those that it has yet to cause, in their order."""
    protocol: ProtocolVersion = PROTOCOL

    def is_under_way(self, now: float) -> bool:
        """Whether anything is to come of it."""
        return bool(self.due) and now - self.at < STALE
