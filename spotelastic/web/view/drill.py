"""What a drill that is under way has yet to interrupt, as values for a page (pure)."""

from dataclasses import dataclass

from spotelastic.model.progress import DueInterruption, RemainingDrill
from spotelastic.web.view import words


@dataclass(frozen=True, slots=True)
class DueRow:
    """An interruption that will come."""

    kind: str
    label: str
    whom: str
    when: str


@dataclass(frozen=True, slots=True)
class DrillRows:
    """The rest of a drill."""

    progress: str
    """How many of its interruptions were caused: "1 of 4 interruptions caused"."""
    due: tuple[DueRow, ...]


def remaining(drill: RemainingDrill, now: float) -> DrillRows:
    """Return what will come of a drill that is under way."""
    total = drill.caused + len(drill.due)
    return DrillRows(
        f"{drill.caused} of {total} interruptions caused",
        tuple(
            DueRow(
                kind=each.kind.value if each.kind.is_known else "other",
                label=words.plain(each.kind.traits.label),
                whom=words.plain(each.whom),
                when=_when(each, now, is_next=number == 0),
            )
            for number, each in enumerate(drill.due)
        ),
    )


def _when(due: DueInterruption, now: float, *, is_next: bool) -> str:
    if due.step is not None:
        return f"from step {due.step:,}"
    if due.at is not None:
        return f"in {words.span(int(due.at - now))}" if due.at - now >= 1.0 else "now"
    return "once training has recovered" if is_next else "after the one before"
