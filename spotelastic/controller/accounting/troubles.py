"""Puts on record what goes wrong with a job: once when it begins, and once when it is over (pure).

Must never happen: something that comes and goes fills the record. It is told again ten minutes
after it was over, at the earliest.
"""

from collections.abc import Iterator, Sequence

from spotelastic.model.headline import SHORT, TROUBLE, headlines
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Event, Status

AGAIN = 600.0
"""Seconds from its end until the same is told again."""
OVER = {
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
        told = [event for event in events if event.kind == TROUBLE and event.data["what"] == what]
        begun = bool(told) and not told[-1].data["over"]
        each = found.get(what)
        if each is not None and what == SHORT and each.colour != "red":
            each = None  # nodes come and go
        data = {"id": f"{what} {len(told)}", "what": what, "over": begun}
        if begun and each is None:
            yield Event(now, TROUBLE, over, data=data)
        elif not begun and each is not None and (not told or now >= told[-1].at + AGAIN):
            yield Event(
                now, TROUBLE, each.line, data=data | {"colour": each.colour, "todo": each.todo}
            )


def lasting(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return what is on record as begun, and not as over."""
    newest = {str(e.data["what"]): e for e in events if e.kind == TROUBLE}
    return tuple(event for event in newest.values() if not event.data["over"])
