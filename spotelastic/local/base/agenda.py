"""Runs the local cloud's timers.

One thread runs tasks when they are due, under the cloud's lock.
"""

import heapq
import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, RLock, Thread

from spotelastic.clock import Clock, wall

Task = Callable[[], None]

_log = logging.getLogger(__name__)


class Agenda:
    """Runs tasks one at a time, in order of time, holding `lock`. Tasks must not wait.

    A task that raises is logged and the agenda goes on: one broken group must not stop the cloud.
    """

    def __init__(self, lock: RLock, clock: Clock = wall) -> None:
        self._lock = lock
        self._clock = clock
        self._due: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._changed = Condition()
        self._going = True
        self._thread = Thread(target=self._run, name="agenda", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def soon(self, task: Task) -> None:
        """Run a task as soon as possible."""
        self.at(0.0, task)

    def at(self, when: float, task: Task) -> None:
        """Run a task at `when`, in epoch seconds."""
        with self._changed:
            heapq.heappush(self._due, (when, next(self._order), task))
            self._changed.notify()

    def after(self, order: Future[None], task: Task) -> None:
        """Run a task after an order; never after one that has failed."""

        def done(order: Future[None]) -> None:
            if order.exception() is None:
                self.at(self._clock(), task)

        order.add_done_callback(done)

    def run_due(self) -> None:
        """Run what is due now in the calling thread, and what that makes due."""
        while self._run_next():
            pass

    def close(self) -> None:
        """Stop after the present task."""
        with self._changed:
            self._going = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._await_due():
            self.run_due()

    def _run_next(self) -> bool:
        """Run the next task if it is due; return whether one was."""
        with self._lock:
            if (task := self._pop_due()) is None:
                return False
            try:
                task()
            except Exception:
                _log.exception("a task of the local cloud failed")
            return True

    def _await_due(self) -> bool:
        """Wait until a task is due; return False when the agenda is closed."""
        with self._changed:
            while self._going:
                if (wait := self._wait()) is not None and wait <= 0:
                    return True
                self._changed.wait(wait)
            return False

    def _pop_due(self) -> Task | None:
        with self._changed:
            wait = self._wait()
            due = self._going and wait is not None and wait <= 0
            return heapq.heappop(self._due)[2] if due else None

    def _wait(self) -> float | None:
        """Return the seconds until the next task is due; None if there is none."""
        return self._due[0][0] - self._clock() if self._due else None
