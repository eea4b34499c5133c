"""Decides how many sick nodes are replaced, and which node is to blame for failures (pure).

Must never happen: nodes are replaced for ever, at full price, for what the next one has as well: a
driver's bug, or a script that makes GPUs fail. Within an hour at most `replaceable` nodes are
replaced for their health. Every further one makes the job smaller, until min cannot be reached.
Then the job fails, and says what was seen.

A node is blamed without a fault that was found if its worker failed first twice in a row, by
itself, while others were there: once in a life of the job, since a script may fail so on one of
its ranks.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spotelastic.controller.model.observation import Action, DrainNode, Observation, Tell
from spotelastic.model.counting import counted
from spotelastic.model.gpu import UNHEALTHY, GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.rendezvous.failures.blame import tells_of_mistake, tells_of_peer

LIMIT = "sick"
"""Kind of the event that tells that sick nodes are no longer replaced."""
REPLACED = 3
"""Fewest nodes that may be replaced for their health within `WITHIN`."""
SHARE = 4
"""Of a large job, one node in so many may be."""
WITHIN = 3600.0
FAILS_FIRST = "fails first"
"""Cause of a node that was blamed without a fault that was found."""
IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class SickNodes:
    """The nodes that fell ill lately, oldest first, and what follows."""

    events: tuple[Event, ...]
    replaceable: int

    @property
    def too_many(self) -> int:
        """How many of them are not replaced."""
        return max(0, len(self.events) - self.replaceable)

    @property
    def again_at(self) -> float:
        """When one more may be replaced, if too many fell ill."""
        return self.events[0].at + WITHIN if self.too_many else math.inf

    @property
    def summary(self) -> str:
        """What people are told if too many fell ill."""
        last = self.events[-1]
        causes = {str(event.data.get("cause", "")) for event in self.events}
        alike = len(causes) == 1
        text = (
            f"{counted(len(self.events), 'node')} fell ill within an hour, and "
            f"{self.replaceable} at most are replaced for that; the last one: {last.message}"
        )
        if not alike:
            return text
        return f"{text}. All had the same: look for the cause in the driver or the script"


def sick(events: Iterable[Event], desired: int, since: float, now: float) -> SickNodes:
    """Return the nodes that fell ill within the last hour, after `since`."""
    once: dict[str, Event] = {}
    for event in sorted(events, key=lambda event: event.at):
        if event.kind == UNHEALTHY and event.at >= since and now - event.at < WITHIN:
            once.setdefault(event.node, event)
    return SickNodes(tuple(once.values()), replaceable(desired))


def replaceable(desired: int) -> int:
    """Return how many nodes of a job may be replaced for their health within an hour."""
    return max(REPLACED, math.ceil(desired / SHARE))


def healthy(nodes: Iterable[str], drains: Mapping[str, Drain]) -> tuple[str, ...]:
    """Return the nodes that are not leaving for their health."""
    return tuple(
        node
        for node in nodes
        if (drain := drains.get(node)) is None
        or drain.notice.kind is not InterruptionKind.UNHEALTHY
    )


def blame(seen: Observation, now: float) -> Iterator[Action]:
    """Has a node replaced that failed first twice in a row, while others were there."""
    life = seen.life
    if seen.ended or seen.ending is not None or len(seen.nodes) < 2:
        return
    if any(e.data.get("cause") == FAILS_FIRST and e.at >= life for e in seen.told_of(UNHEALTHY)):
        return
    node = first_in_a_row([event for event in seen.told_of("failure") if event.at >= life])
    known = seen.nodes.get(node)
    if known is None or node in seen.drains:
        return
    what = f"its worker was the first to fail {IN_A_ROW} times in a row, and no other node's was"
    event = GpuFault(what, "controller", FAILS_FIRST).event(node, now, joined=True)
    notice = Notice(InterruptionKind.UNHEALTHY, node, "controller", now, now)
    drains = DrainNode(Drain(node, notice))
    yield drains
    yield Tell(event, after=(drains,))


def first_in_a_row(failures: Sequence[Event]) -> str:
    """Return the node whose worker failed first in each of the last rounds that failed.

    Empty if it was not always the same node.

    Failures that only say that a peer has gone do not count, nor do mistakes in the script, nor do
    rounds that have no others.
    """
    first: dict[str, Event] = {}
    for event in sorted(failures, key=lambda event: event.at):
        own = int(event.data.get("rank", -1)) >= 0  # not a round's store
        if own and not tells_of_peer(event) and not tells_of_mistake(event):
            first.setdefault(str(event.data.get("round", "")), event)
    last = [event.node for event in first.values()][-IN_A_ROW:]
    return last[0] if len(last) == IN_A_ROW and len(set(last)) == 1 else ""
