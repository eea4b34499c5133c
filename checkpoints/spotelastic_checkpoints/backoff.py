"""Calculates how long to wait after failed attempts (pure).

A back-off is a value. Its owner replaces it after each attempt, and waits for its pause:

    backoff = backoff.failed()
    wait(backoff.pause(random.uniform))
    ...
    backoff = backoff.succeeded()
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

Draw = Callable[[float, float], float]
"""A random number between two, such as `random.uniform`."""

_MOST_DOUBLED = 64
"""Failures beyond this lengthen no pause; the power would overflow."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow with each failure in a row: `first` seconds, at most `longest`."""

    first: float
    longest: float
    factor: float = 2.0
    jitter: tuple[float, float] = (1.0, 1.0)
    """Shares of the bound between which a pause is drawn. Clients that were turned away together
    then do not come back together."""
    failures: int = 0
    """Failures in a row; with 0 there is no pause."""

    @property
    def bound(self) -> float:
        """The pause after these failures, without jitter."""
        if self.failures < 1:
            return 0.0
        grown = self.first * self.factor ** min(self.failures - 1, _MOST_DOUBLED)
        return min(self.longest, grown)

    def failed(self) -> "Backoff":
        """Return the back-off after one more failure."""
        return replace(self, failures=self.failures + 1)

    def succeeded(self) -> "Backoff":
        """Return the back-off after a success, without a pause."""
        return replace(self, failures=0)

    def pause(self, draw: Draw) -> float:
        """Return the seconds until the next attempt."""
        low, high = self.jitter
        return draw(low * self.bound, high * self.bound)
