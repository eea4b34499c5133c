"""Finds out of a job's events what was found of its steps, and its fingerprint (pure).

By rehearsals, by the proof of the first commit, by the guard of steps, and by audits.
"""

from collections.abc import Iterable

import msgspec

from spotelastic.model.in_place import (
    AUDITED,
    FINGERPRINT,
    PROVEN,
    REHEARSED,
    SICK,
    SKIPPED,
    Rehearsal,
    Skipped,
)
from spotelastic.model.progress import Event


def telling(events: Iterable[Event]) -> Rehearsal | None:
    """Return the rehearsal that people should know of; None if there was none.

    Of each number of ranks the newest counts. Of these, one that differs comes before all others.
    """
    newest: dict[int, Rehearsal] = {}
    for event in events:
        found = _read(event, REHEARSED)
        if found is not None:
            newest.pop(found.ranks, None)
            newest[found.ranks] = found
    told = sorted(newest.values(), key=lambda each: each.differs)  # the newest of its kind last
    return told[-1] if told else None


def proof(events: Iterable[Event]) -> Rehearsal | None:
    """Return what was found when the first commit was read back; None before that.

    Each node reads its own part. One that differs comes before all others.
    """
    found = [each for event in events if (each := _read(event, PROVEN)) is not None]
    newest = [each for each in found if each.step == found[-1].step]
    return max(newest, key=lambda each: each.differs, default=None)


def fingerprint(events: Iterable[Event], step: int) -> str:
    """Return the SHA-256 of what was trained when this step was the last; empty if it was not."""
    found = [each for event in events if (each := _read(event, FINGERPRINT)) is not None]
    return found[-1].outcome if found and found[-1].step == step else ""


def skipped(events: Iterable[Event]) -> Skipped:
    """Return what is known of steps that were skipped."""
    found = [(event, its) for event in events if (its := _read(event, SKIPPED)) is not None]
    if not found:
        return Skipped()
    returns = sum(its.outcome == "back" for _, its in found)
    return Skipped(len(found), returns, found[-1][0].at, found[-1][1].line)


def audit(events: Iterable[Event]) -> Rehearsal | None:
    """Return the newest audit in which ranks have differed; None if there was none.

    What the node has told whose result differed says no more than what all have seen.
    """
    found = (each for event in events if (each := _read(event, AUDITED)) is not None)
    return max((each for each in found if each.outcome != SICK), key=_step, default=None)


def _step(found: Rehearsal) -> int:
    return found.step


def _read(event: Event, kind: str) -> Rehearsal | None:
    """Return what an event of this kind tells of. One of another version is left out."""
    if event.kind != kind:
        return None
    try:
        return msgspec.convert(event.data, Rehearsal)
    except msgspec.ValidationError:
        return None
