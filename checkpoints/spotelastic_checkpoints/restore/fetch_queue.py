"""Distributes the requests of a restore over the sources that can serve them.

A source has several lanes (connections), and each lane takes the next request that its source can
serve. So a fast source serves more requests than a slow one. What a lost source had begun goes to
the next one. A request that a slow source delays is given to another one as well.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import zip_longest

from spotelastic_checkpoints.errors import CheckpointsError, RestoreFailed
from spotelastic_checkpoints.restore.fetch_units import FetchRequest

LATE = 2.0
"""Seconds after which a request is given to another source as well."""


class FetchQueue:
    """The requests of one restore, thread-safe."""

    def __init__(
        self,
        lanes: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
        late: float = LATE,
    ) -> None:
        """`lanes` are the numbers of lanes of the sources; `clock` returns the time in seconds.

        A request that is not done after `late` seconds is given to another source as well.
        """
        self._late = late
        self._changed = threading.Condition()
        self._clock = clock
        self._idle = list(lanes)
        """Number of idle lanes of each source: those that have ended or were never started."""
        self._queues: dict[int, deque[FetchRequest]] = defaultdict(deque)
        """Requests by source. One that was begun or done meanwhile is skipped."""
        self._begun: dict[FetchRequest, float] = {}
        """When each request under way was last given to a source."""
        self._given: dict[FetchRequest, set[int]] = {}
        """The sources that each unfinished request has been given to."""
        self._lost: dict[int, str] = {}
        """Sources that are not used any more, and why."""
        self._error: CheckpointsError | None = None

    def add(self, requests: Iterable[FetchRequest]) -> list[int]:
        """Add requests. Returns the sources whose lanes have to be started, once for each lane."""
        with self._changed:
            asked: set[int] = set()
            for request in requests:
                self._given[request] = set()
                asked |= request.sources
                self._queue(request)
                self._look_for_somebody(request)
            self._changed.notify_all()
            return self._to_begin(asked - self._lost.keys())

    def take(self, source: int) -> FetchRequest | None:
        """Return the next request for a lane of this source; None ends the lane.

        Waits while requests that other sources have begun may still have to be given to this one.
        """
        with self._changed:
            request = self._next(source)
            if request is None:
                self._idle[source] += 1
            return request

    def done(self, request: FetchRequest) -> None:
        """Note that the request is done."""
        with self._changed:
            self._begun.pop(request, None)
            self._given.pop(request, None)
            self._changed.notify_all()

    def is_done(self, request: FetchRequest) -> bool:
        """Return whether the request is done."""
        with self._changed:
            return request not in self._given

    def lost(self, source: int, reason: CheckpointsError) -> None:
        """Stop using a source.

        Its requests go to others, or everything fails where there are none.
        """
        with self._changed:
            self._lost[source] = str(reason)
            for request, given in list(self._given.items()):
                given.discard(source)
                self._look_for_somebody(request)
                if request in self._begun and not given:
                    del self._begun[request]
                    self._queue(request)
            self._changed.notify_all()

    def failed(self, error: CheckpointsError) -> None:
        """Fail everything, because no other source can help. The first error is kept."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self, requests: Collection[FetchRequest]) -> None:
        """Wait until these requests are done. Raises the error that everything failed with."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or self._given.keys().isdisjoint(requests)
            )
            if self._error is not None:
                raise self._error

    def _next(self, source: int) -> FetchRequest | None:
        while self._error is None and source not in self._lost:
            queue = self._queues[source]
            while queue:
                request = queue.popleft()
                if request in self._given and request not in self._begun:
                    return self._give(request, source)
            others = [
                request
                for request in self._begun
                if source in request.sources and source not in self._given[request]
            ]
            if not others:
                return None
            oldest = min(others, key=lambda request: self._begun[request])
            left = self._begun[oldest] + self._late - self._clock()
            if left <= 0:
                return self._give(oldest, source)
            self._changed.wait(left)
        return None

    def _to_begin(self, asked: Collection[int]) -> list[int]:
        """Return the sources of lanes to start, beginning with one lane of each.

        What only one source has may be what is waited for.
        """
        turns = []
        for source in sorted(asked):
            count = min(self._idle[source], len(self._queues[source]))
            self._idle[source] -= count
            turns.append([source] * count)
        return [source for turn in zip_longest(*turns) for source in turn if source is not None]

    def _look_for_somebody(self, request: FetchRequest) -> None:
        if not request.sources - self._lost.keys():
            reasons = "; ".join(self._lost[source] for source in sorted(request.sources))
            self._error = self._error or RestoreFailed(reasons)

    def _queue(self, request: FetchRequest) -> None:
        for source in request.sources:
            self._queues[source].append(request)

    def _give(self, request: FetchRequest, source: int) -> FetchRequest:
        self._begun[request] = self._clock()
        self._given[request].add(source)
        return request
