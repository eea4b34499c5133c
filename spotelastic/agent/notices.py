"""Polls the instance metadata service for interruption notices, once a second, on its own thread.

Trouble with the service (a 503, a hanging request) only lengthens the pause between two polls.
"""

import threading
from collections.abc import Callable

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.aws.base.imds import Imds
from spotelastic.clock import unbroken, wall
from spotelastic.errors import Unavailable
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice

POLL = 1.0
BACK_OFF = 5.0
ANSWERS_WITHIN = 1.0
"""Seconds after which a request counts as hanging."""
LEAD = 120.0
"""Seconds before the end at which AWS issues an interruption notice. The document has the end only.
So the notice is taken to be issued at that time, but not before a poll that did not find it yet.
"""


class NoticePoller:
    """Calls `sink` once for each notice about `node`, from its own thread."""

    def __init__(self, base_url: str, node: str, sink: Callable[[Notice], None]) -> None:
        self._imds = Imds(base_url, timeout=ANSWERS_WITHIN)
        self._node = node
        self._sink = sink
        self._told: set[tuple[str, float]] = set()
        self._clear_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        backoff = Backoff(2 * POLL, BACK_OFF)
        while not self._stop.wait(backoff.bound or POLL):
            try:
                self._poll()
                backoff = backoff.succeeded()
            except Unavailable:
                backoff = backoff.failed()

    def _poll(self) -> None:
        now, ahead = unbroken(), unbroken() - wall()
        told = self._imds.interruption()
        if told is not None:
            end = told + ahead
            at = min(now, max(end - LEAD, self._clear_at))
            self._tell(
                Notice(InterruptionKind.SPOT_INTERRUPTION, self._node, "imds", at, now, end), told
            )
            return
        self._clear_at = now
        if self._imds.lifecycle_state() == "Terminated":
            self._tell(
                Notice(InterruptionKind.PLANNED, self._node, "imds", now, now, now + LEAD), 0.0
            )
        advised = self._imds.rebalance()
        if advised is not None:
            self._tell(
                Notice(InterruptionKind.REBALANCE, self._node, "imds", advised + ahead, now),
                advised,
            )

    def _tell(self, notice: Notice, identity: float) -> None:
        if (notice.kind, identity) not in self._told:
            self._told.add((notice.kind, identity))
            self._sink(notice)
