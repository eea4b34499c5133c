"""Back-off for a leader's calls that keep failing, with one message for each kind of failure.

botocore's own retries end with one call, while AWS's throttling counts the calls of all clients.
"""

import random
from collections.abc import Callable

from spotelastic.clock import Clock, steady

Draw = Callable[[float, float], float]
"""A random number between two."""

SAID_AGAIN_AFTER = 60.0
"""Seconds after which what is still wrong is said once more."""


class Backoff:
    """Pauses between tries that fail: each is drawn below a bound that doubles. The jitter keeps
    those that were turned away together from coming again together."""

    def __init__(self, first: float, at_most: float, draw: Draw = random.uniform) -> None:
        self._first = min(first, at_most)
        self._at_most = at_most
        self._draw = draw
        self._bound = self._first

    def failed(self) -> float:
        """Seconds until the next try."""
        bound = self._bound
        self._bound = min(self._at_most, 2.0 * bound)
        return self._draw(0.5 * bound, bound)

    def succeeded(self) -> None:
        self._bound = self._first


class Complaint:
    """Says what goes wrong when it is new, and once in a while what goes on."""

    def __init__(self, say: Callable[[str], None], clock: Clock = steady) -> None:
        self._say = say
        self._clock = clock
        self._said = ""
        self._silent_until = float("-inf")

    def __call__(self, line: str) -> None:
        if line == self._said and self._clock() < self._silent_until:
            return
        self._said, self._silent_until = line, self._clock() + SAID_AGAIN_AFTER
        self._say(line)
