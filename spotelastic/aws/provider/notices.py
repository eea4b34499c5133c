"""Reads a node's interruption notices from the instance metadata service (IMDS)."""

from collections.abc import Iterator

from spotelastic.aws.base.imds import Imds
from spotelastic.clock import Clock, unbroken, wall
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice

ANSWERS_WITHIN = 1.0
"""Seconds after which a request counts as hanging."""
LEAD = 120.0
"""Seconds before the end at which AWS issues an interruption notice. The document has the end only.
So the notice is taken to be issued at that time, but not before a poll that did not find it yet.
"""


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
        self._clear_at = 0.0

    def poll(self) -> tuple[Notice, ...]:
        """Return the notices that have not been returned before."""
        new = []
        for notice, identity in self._found():
            if (notice.kind, identity) not in self._told:
                self._told.add((notice.kind, identity))
                new.append(notice)
        return tuple(new)

    def _found(self) -> Iterator[tuple[Notice, float]]:
        """Yield what the service says now, each with what tells it from others of its kind."""
        now, ahead = self._clock(), self._clock() - self._wall()
        told = self._imds.interruption()
        if told is not None:
            end = told + ahead
            at = min(now, max(end - LEAD, self._clear_at))
            yield (
                Notice(InterruptionKind.SPOT_INTERRUPTION, self._node, "imds", at, now, end),
                told,
            )
            return
        self._clear_at = now
        if self._imds.lifecycle_state() == "Terminated":
            yield Notice(InterruptionKind.PLANNED, self._node, "imds", now, now, now + LEAD), 0.0
        advised = self._imds.rebalance()
        if advised is not None:
            yield (
                Notice(InterruptionKind.REBALANCE, self._node, "imds", advised + ahead, now),
                advised,
            )
