"""Puts on record what goes wrong with a job: once when it begins, and once when it is over (pure).

Must never happen: something that comes and goes fills the record. It is told again ten minutes
after it was over, at the earliest.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotelastic.model.headline import SHORT, TROUBLE, WHEN_RED, HeadlineKind, headlines
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Event, Status

TROUBLE_OVER = "trouble-over"
KINDS = (TROUBLE, TROUBLE_OVER)
"""Kinds of these events."""
AGAIN = 600.0
"""Seconds from its end until the same is told again."""
OVER: Mapping[HeadlineKind, str] = {
    "loss-not-finite": "the loss is finite again",
    "no-step": "steps are executed again",
    "not-committed": "checkpoints are committed again",
    SHORT: "there are enough nodes again",
    "loss-far-out": "the loss is in the range of its history again",
}
"""What is told, and what is said at its end. Other kinds have events of their own."""


def entries(status: Status, events: Sequence[Event], now: float) -> Iterator[Event]:
    """Yield what is to be put on record. Of a job that has ended that is nothing: its end is."""
    if status.state in ENDED:
        return
    found = {each.kind: each for each in headlines(status, now)}
    for what, over in OVER.items():
        told = [event for event in events if event.kind in KINDS and event.data.get("what") == what]
        lasts = bool(told) and told[-1].kind == TROUBLE
        each = found.get(what)
        if each is not None and what in WHEN_RED and each.colour != "red":
            each = None
        data: dict[str, Any] = {"id": f"{what} {len(told)}", "what": what}
        if lasts and each is None:
            yield Event(now, TROUBLE_OVER, over, data=data)
        elif not lasts and each is not None and (not told or now >= told[-1].at + AGAIN):
            step = status.not_finite or status.step
            data |= {"colour": each.colour, "todo": each.todo, "step": step}
            yield Event(now, TROUBLE, each.line, data=data)


def lasting(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return what is on record as begun, and not as over."""
    newest = {str(event.data.get("what")): event for event in events if event.kind in KINDS}
    return tuple(event for event in newest.values() if event.kind == TROUBLE)
