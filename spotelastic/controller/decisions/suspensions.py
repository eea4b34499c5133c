"""Decides what is told of a group whose work somebody has suspended (pure).

The cluster does not undo what a person has done, who may have a reason. It says what it waits for:
else a job that gets no nodes looks as if there were none.
"""

from collections.abc import Iterator
from itertools import count

from spotelastic.cloud.model import WorkerGroup
from spotelastic.controller.model.observation import Observation, Tell, account
from spotelastic.model.progress import Event

SUSPENDED, RESUMED = "suspended", "suspended-over"
"""Kinds of the events that tell of the beginning and of the end."""


def tell(seen: Observation, now: float) -> Iterator[Tell]:
    """Record once that a group's work is suspended, and once that it no longer is."""
    if seen.ended:
        return
    for group in seen.groups:
        times = next(n for n in count() if not _is_told(seen, _which(seen, group, RESUMED, n)))
        told = _is_told(seen, _which(seen, group, SUSPENDED, times))
        if group.held and not told:
            data = _which(seen, group, SUSPENDED, times)
            yield Tell(Event(now, "limit", "; ".join(group.held), data=data))
        elif told and not group.held:
            data = _which(seen, group, RESUMED, times)
            text = f"nothing of the group {group.name} is suspended any more"
            yield Tell(Event(now, "limit", text, data=data))


def _which(seen: Observation, group: WorkerGroup, kind: str, times: int) -> dict[str, object]:
    """Return what identifies an event.

    It is the same for as long as the job lives and no earlier event of its kind was recorded.
    """
    life = seen.job.at if seen.job else 0.0
    return {"kind": kind, "incarnation": f"{life}-{group.name}-{times}"}


def _is_told(seen: Observation, data: dict[str, object]) -> bool:
    return account(Event(0.0, "limit", "", data=data)) in seen.told
