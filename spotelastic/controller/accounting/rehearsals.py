"""Finds out of a job's events what its rehearsals have found (pure)."""

from collections.abc import Iterable

import msgspec

from spotelastic.model.progress import Event
from spotelastic.model.rehearsal import EVENT, Rehearsal


def telling(events: Iterable[Event]) -> Rehearsal | None:
    """Return the rehearsal that people should know of; None if there was none.

    Of each number of ranks the newest counts. Of these, one that differs comes before all others.
    """
    newest: dict[int, Rehearsal] = {}
    for event in events:
        found = _read(event)
        if found is not None:
            newest.pop(found.ranks, None)
            newest[found.ranks] = found
    told = sorted(newest.values(), key=lambda each: each.differs)  # the newest of its kind last
    return told[-1] if told else None


def _read(event: Event) -> Rehearsal | None:
    """Return what an event tells of. One of another version is left out."""
    if event.kind != EVENT:
        return None
    try:
        return msgspec.convert(event.data, Rehearsal)
    except msgspec.ValidationError:
        return None
