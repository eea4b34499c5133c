"""Draws a series of numbers as a line of bars, one character high."""

from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
MOST_POINTS = 512
"""Points that a series keeps; beyond that each two become their mean."""


class LossSeries:
    """The losses that a viewer has seen, from the first step to the newest.

    It stays small however long the job trains: older points are merged, and all weigh the same
    number of steps.
    """

    def __init__(self) -> None:
        self._means: list[float] = []
        self._open: list[float] = []
        self._each = 1
        self._step = 0

    def feed(self, step: int, loss: float | None) -> None:
        """Take the loss of a step; one that was seen already, and a missing one, change nothing."""
        if loss is None or step == self._step:
            return
        self._step = step
        self._open.append(loss)
        if len(self._open) >= self._each:
            self._means.append(sum(self._open) / len(self._open))
            self._open = []
        if len(self._means) > MOST_POINTS:
            pairs = zip(self._means[::2], self._means[1::2], strict=False)
            self._means, self._each = [(a + b) / 2 for a, b in pairs], self._each * 2

    @property
    def values(self) -> tuple[float, ...]:
        """The losses, the oldest first."""
        return (*self._means, *([sum(self._open) / len(self._open)] if self._open else ()))


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as at most `width` bars; empty for fewer than two values.

    What is not finite is left out: a single infinite loss would flatten all others.
    """
    finite = [value for value in values if abs(value) < float("inf")]
    if len(finite) < 2 or width < 2:
        return ""
    binned = _binned(finite, min(width, len(finite)))
    low, high = min(binned), max(binned)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in binned)


def _binned(values: Sequence[float], bins: int) -> list[float]:
    edges = [index * len(values) // bins for index in range(bins + 1)]
    parts = [values[a:b] for a, b in pairwise(edges)]
    return [sum(part) / len(part) for part in parts]
