"""Runs many simulated agents on a few threads, and renews their leases."""

import heapq
import itertools
import queue
import threading
from collections.abc import Callable

from spotelastic.clock import steady
from spotelastic.store.port import Store
from spotelastic.store.session import Keeper


class Crew:
    """Runs turns at once or later; `check` raises the first error of any.

    It has threads of its own, because an executor's `submit` costs as much as an agent's decision.
    """

    def __init__(self, threads: int) -> None:
        self._turns: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"crew-{number}", daemon=True)
            for number in range(threads)
        ]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._clock = threading.Thread(target=self._wait, name="clock", daemon=True)
        for thread in (*self._threads, self._clock):
            thread.start()

    def soon(self, turn: Callable[[], None]) -> None:
        self._turns.put(turn)

    def later(self, seconds: float, turn: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._due, (steady() + seconds, next(self._count), turn))
            if self._due[0][2] is turn:
                self._changed.notify()

    def keep(self, store: Store, lease: int, ttl: float, lost: Callable[[str], None]) -> None:
        """Renew a lease as a session does, until it is lost."""
        keeper = Keeper(store, lease, ttl, steady(), steady)

        def step() -> None:
            verdict = keeper.step()
            if isinstance(verdict, str):
                lost(verdict)
            else:
                self.later(verdict, step)

        self.later(keeper.first(), step)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._clock.join()
        for _ in self._threads:
            self._turns.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (turn := self._turns.get()) is not None:
            try:
                if not self._closed:
                    turn()
            except Exception as error:
                self._error = self._error or error

    def _wait(self) -> None:
        with self._changed:
            while not self._closed:
                now = steady()
                while self._due and self._due[0][0] <= now:
                    self.soon(heapq.heappop(self._due)[2])
                self._changed.wait(self._due[0][0] - now if self._due else None)
