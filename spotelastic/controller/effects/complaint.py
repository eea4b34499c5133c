"""Logs a failure of a leader's calls once, however often the calls fail."""

from collections.abc import Callable

from spotelastic.clock import Clock, steady

SAID_AGAIN_AFTER = 60.0
"""Seconds after which a failure that lasts is logged once more."""


class Complaint:
    """Passes a message on if it is new, or if it was passed on long ago."""

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
