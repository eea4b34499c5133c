"""What is known of a zone in which the cloud takes nodes soon after their launch (pure).

It follows from the events on record, so that every controller that leads knows the same.
"""

from dataclasses import dataclass, replace
from typing import Any

from spotelastic.model.counting import counted
from spotelastic.model.progress import Event

SHORT_LIFE = "short-life"
"""Kind of the event that tells that a node was taken soon after its launch."""
SHORT_LIFE_OVER = "short-life-over"
"""Kind of the event that tells that nodes of the zone live long again."""
TOGETHER = 60.0
"""Seconds within which nodes are taken together: that counts once."""
FORGOTTEN_AFTER = 86_400.0
"""Seconds after which earlier short lives do not count."""


@dataclass(frozen=True, slots=True)
class ShortLives:
    """The nodes of one zone that were taken soon, with none in between that lived long."""

    times: int
    """How often nodes were taken. Those that were taken together count once."""
    nodes: int
    lived: float
    """Seconds from their launch until they were taken, on average."""
    since: float
    """When the first of them was launched."""
    began: float
    """When the first of those was taken that were taken together last."""
    at: float
    """When the last one was taken."""

    @property
    def line(self) -> str:
        """For people, after the name of the zone."""
        often = counted(self.times, "time")
        return f"nodes were taken {lifetime(self.lived)} after their launch, {often} in a row"

    def data(self) -> dict[str, Any]:
        """Return the fields of an event that tells of them."""
        return {"lived": round(self.lived, 1), "times": self.times}


def lifetime(seconds: float) -> str:
    """Return how long a node lived, for people: whole minutes from two minutes on."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def after(before: ShortLives | None, event: Event) -> ShortLives | None:
    """Return what is known of the event's zone once it has happened; None: nothing bad."""
    if event.kind == SHORT_LIFE_OVER:
        return None
    lived, at = float(event.data.get("lived", 0.0)), float(event.data.get("at", event.at))
    if before is None or at - before.at > FORGOTTEN_AFTER:
        return ShortLives(1, 1, lived, at - lived, at, at)
    nodes = before.nodes + 1
    again = replace(
        before,
        nodes=nodes,
        lived=before.lived + (lived - before.lived) / nodes,
        at=max(at, before.at),
    )
    if at - before.began <= TOGETHER:
        return again
    return replace(again, times=before.times + 1, began=at)
