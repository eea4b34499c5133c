"""Corrects what the cloud shows by what is known already (pure).

An answer of a cloud may be some seconds old, and older than the one before. Deciding from it as it
is would do things twice: end an instance again, and shrink its group by two, or take one that is
gone for one that runs.
"""

from collections.abc import Mapping

from spotelastic.cloud.model import ALIVE, Instance, WorkerGroup
from spotelastic.controller.decisions.urgent import acted
from spotelastic.controller.model.observation import Remove, Replace

SHOWN_WITHIN = 60.0
"""Seconds after its launch within which an instance may be left out of an answer."""
_LAST: Mapping[str, int] = {"shutting-down": 1, "terminated": 2}
"""States that an instance never leaves for one before."""

Ended = Mapping[str, Replace | Remove]
"""What the groups were told to end, by instance."""


def groups_now(groups: Mapping[str, WorkerGroup], ended: Ended) -> dict[str, WorkerGroup]:
    """Return the groups as they are by now. An instance that was told to end does not stay, and
    where it does, the answer is from before, with the size of then.
    """
    return acted(groups, ended.values())


def instances_now(
    before: Mapping[str, Instance], found: Mapping[str, Instance], now: float
) -> dict[str, Instance]:
    """Return the instances as they are by now: none comes back to life, and none that was just
    launched is forgotten.
    """
    missing = {
        name: each
        for name, each in before.items()
        if name not in found and each.state in ALIVE and now - each.launched_at < SHOWN_WITHIN
    }
    return missing | {name: _later(before.get(name), each) for name, each in found.items()}


def _later(before: Instance | None, found: Instance) -> Instance:
    if before is not None and _LAST.get(before.state, 0) > _LAST.get(found.state, 0):
        return before
    return found
