"""Reads a node's interruption notices from the instance metadata service (IMDS).

Must never happen: a node is not told of its end because something else that the service says cannot
be read. So each document, and each entry of a list, is read by itself.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from spotelastic.aws.base.imds import ACTIVE, Imds, ScheduledEvent, UnusableAnswer, read_scheduled
from spotelastic.clock import Clock, unbroken, wall
from spotelastic.errors import Unavailable
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice

ANSWERS_WITHIN = 1.0
"""Seconds after which a request counts as hanging."""
LEAD = 120.0
"""Seconds before the end at which AWS issues an interruption notice. The document has the end only.
So the notice is taken to be issued at that time, but not before a poll that did not find it yet.
"""
LEAVES = frozenset({"Terminated", "Detached"})
"""States that an Auto Scaling group wants of an instance that is to leave it: for a smaller group,
an instance refresh, a failed health check, or because somebody has asked for it.
"""
RETIRED = frozenset({"instance-retirement", "instance-stop"})
"""AWS's words for maintenance after which the instance does not come back by itself."""


@contextmanager
def _noted(unreadable: list[UnusableAnswer]) -> Iterator[None]:
    """Note an answer that cannot be used, and go on with the next question.

    A service that does not answer at all is not asked further.
    """
    try:
        yield
    except UnusableAnswer as error:
        unreadable.append(error)


class ImdsNotices:
    """The notices about `node`, which runs on this instance. For one thread."""

    def __init__(
        self,
        base_url: str,
        node: str,
        *,
        timeout: float = ANSWERS_WITHIN,
        clock: Clock = unbroken,
        wall: Clock = wall,
    ) -> None:
        """Poll the service at `base_url`; a request that takes `timeout` seconds hangs."""
        self._imds = Imds(base_url, timeout=timeout)
        self._node = node
        self._clock = clock
        self._wall = wall
        self._told: set[tuple[str, float]] = set()
        self._scheduled: dict[str, ScheduledEvent] = {}
        """What was announced, by its id, until it has begun or is called off."""
        self._clear_at = 0.0
        self._now = self._ahead = 0.0
        """When the present poll is made, and how far its clock is ahead of the service's."""

    def poll(self) -> tuple[Notice, ...]:
        """Return the notices that have not been returned before."""
        self._now = self._clock()
        self._ahead = self._now - self._wall()
        new: list[Notice] = []
        unreadable: list[UnusableAnswer] = []
        try:
            for read in (self._interruption, self._group, self._rebalance):
                with _noted(unreadable):
                    new += self._untold(read())
            with _noted(unreadable):
                new += self._maintenance(self._imds.scheduled(), unreadable)
        except Unavailable:
            if not new:  # what was read is not returned again
                raise
        if unreadable and not new:
            raise unreadable[0]
        return tuple(new)

    def _untold(self, found: Iterable[tuple[Notice, float]]) -> Iterator[Notice]:
        for notice, identity in found:
            if (notice.kind, identity) not in self._told:
                self._told.add((notice.kind, identity))
                yield notice

    # Each yields what the service says now, with what tells it from others of its kind.

    def _interruption(self) -> Iterator[tuple[Notice, float]]:
        told = self._imds.interruption()
        if told is None:
            self._clear_at = self._now
            return
        end = told.at + self._ahead
        issued = min(self._now, max(end - LEAD, self._clear_at))
        kind = InterruptionKind.SPOT_INTERRUPTION
        yield Notice(kind, self._node, "imds", issued, self._now, end, told.action), told.at

    def _group(self) -> Iterator[tuple[Notice, float]]:
        now = self._now
        if self._imds.lifecycle_state() in LEAVES:
            yield Notice(InterruptionKind.PLANNED, self._node, "imds", now, now, now + LEAD), 0.0

    def _rebalance(self) -> Iterator[tuple[Notice, float]]:
        advised = self._imds.rebalance()
        if advised is not None:
            kind = InterruptionKind.REBALANCE
            yield Notice(kind, self._node, "imds", advised + self._ahead, self._now), advised

    def _maintenance(
        self, listed: Iterable[object], unreadable: list[UnusableAnswer]
    ) -> Iterator[Notice]:
        """Yield what is newly scheduled, or at another time than before, and what is called off."""
        active: dict[str, ScheduledEvent] = {}
        for entry in listed:
            with _noted(unreadable):
                event = read_scheduled(entry)
                if event.state == ACTIVE:
                    active[event.id] = event
        for id, event in active.items():
            if self._scheduled.get(id) != event:
                self._scheduled[id] = event
                yield self._announced(event)
        if unreadable:
            return  # what cannot be read is not called off
        for id in self._scheduled.keys() - active.keys():
            event = self._scheduled.pop(id)
            if self._now < event.begins + self._ahead:  # else it has begun
                yield self._announced(event, called_off=True)

    def _announced(self, event: ScheduledEvent, called_off: bool = False) -> Notice:
        retired = event.code in RETIRED
        kind = InterruptionKind.RETIREMENT if retired else InterruptionKind.MAINTENANCE
        now, begins = self._now, event.begins + self._ahead
        return Notice(kind, self._node, "imds", now, now, begins, event.code, event.id, called_off)
