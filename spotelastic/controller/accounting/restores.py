"""Puts on record how long the nodes took to restore in a round, once all of them have (pure).

A node's report on itself is gone with the next one, so that the leader keeps what it says: one
event for each round, however many nodes there are.
"""

from collections.abc import Iterable, Iterator, Mapping

from spotelastic.controller.model.observation import Records
from spotelastic.model.counting import counted
from spotelastic.model.progress import Event

RESTORED = "restored"
"""Kind of these events."""


def entry(records: Records, now: float) -> Iterator[Event]:
    """Yield the event of the current round, once its nodes have made a step."""
    round_ = records.round
    if round_ is None or round_.resume.kind == "fresh":
        return
    told = [each for each in records.of_round.values() if each.step > round_.resume.step]
    if len(told) < len(round_.members):
        return
    slowest: dict[str, float] = {}
    for each in told:
        if each.restore_time:
            source = each.restored_from
            slowest[source] = max(slowest.get(source, 0.0), each.restore_time)
    if not slowest:
        return  # all workers have kept their state, or the nodes do not measure it
    nodes = sum(each.restore_time > 0 for each in told)
    parts = ", ".join(f"{seconds:.2f} s from {source}" for source, seconds in slowest.items())
    text = f"round {round_.number}: {counted(nodes, 'node')} restored in {parts}"
    data = {
        "number": round_.number,
        "incarnation": round_.incarnation,
        "nodes": nodes,
        "seconds": slowest,
    }
    yield Event(now, RESTORED, text, data=data)


def by_round(events: Iterable[Event]) -> Mapping[int, dict[str, float]]:
    """Return the seconds of the slowest node by source, for each round that is on record."""
    return {
        int(event.data["number"]): dict(event.data["seconds"])
        for event in events
        if event.kind == RESTORED
    }
