"""Runs effects in virtual time, in the order in which they are due."""

import heapq
import itertools
from collections.abc import Callable

Effect = Callable[[], None]


class Timeline:
    """Virtual time in seconds. It passes only in `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Effect]] = []
        self._count = itertools.count()

    def at(self, moment: float, effect: Effect) -> None:
        """Run the effect at this time."""
        heapq.heappush(self._due, (max(moment, self.now), next(self._count), effect))

    def after(self, seconds: float, effect: Effect) -> None:
        """Run the effect after this number of seconds."""
        self.at(self.now + seconds, effect)

    def run(self, until: float) -> None:
        """Run all effects that are due until then."""
        while self._due and self._due[0][0] <= until:
            self.now, _, effect = heapq.heappop(self._due)
            effect()
        self.now = until


class Soon:
    """Runs an effect once, a little later, however often it is called meanwhile."""

    def __init__(self, timeline: Timeline, delay: float, effect: Effect) -> None:
        self._timeline, self._delay, self._effect = timeline, delay, effect
        self._asked = False

    def __call__(self) -> None:
        if not self._asked:
            self._asked = True
            self._timeline.after(self._delay, self._go)

    def _go(self) -> None:
        self._asked = False
        self._effect()
