"""Chooses how fast replicas are sent where nobody has said it (pure, but for `usual_rate`).

Training should not be slower for them by more than a hundredth. So steps beside a pull are compared
with those between two pulls.
"""

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

SHARE = 0.1
"""Share of a network card's speed to begin with."""
UNKNOWN = 100e6
"""Bytes per second where the speed is not known."""
LEAST, MOST = 0.05, 5.0
"""Bounds of a rate that changes, as factors of the one that it began with."""
ALLOWED = 0.01
"""Share by which steps may take longer beside a pull."""
FEWEST_STEPS = 3
"""Steps that a mean is made of."""
FEWEST, KEPT = 6, 64
"""Comparisons that a change is made of, and how many are looked at."""
SURE = 3.0
"""Standard errors by which their mean has to be on one side of what is allowed."""
UP, DOWN = 1.25, 0.5


def usual_rate(interfaces: Path) -> float:
    """Return bytes per second, from the speed of the fastest network card below `interfaces`.

    The kernel tells it in Mbit/s, or -1, or nothing.
    """
    speeds = [0.0]
    for path in interfaces.glob("*/speed"):
        try:
            speeds.append(float(path.read_text()))
        except (OSError, ValueError):
            continue
    fastest = max(speeds) * 1e6 / 8
    return SHARE * fastest if fastest > 0 else UNKNOWN


@dataclass(frozen=True, slots=True)
class Reached:
    """How far training was at one moment."""

    step: int
    at: float
    """When the step was finished (epoch seconds)."""

    def mean(self, later: "Reached") -> float:
        """Return the mean seconds of a step until the later moment; 0 of too few steps."""
        steps = later.step - self.step
        return (later.at - self.at) / steps if steps >= FEWEST_STEPS else 0.0


@dataclass(frozen=True, slots=True)
class PullPace:
    """A rate that follows what it costs."""

    rate: float
    """Bytes per second."""
    begun: float
    """The rate that it began with."""
    slower: tuple[float, ...] = ()
    """By what share steps were longer beside the last pulls at this rate."""

    @classmethod
    def of(cls, rate: float) -> "PullPace":
        """Return the pace that begins with this rate."""
        return cls(rate, rate)

    def after(self, alone: float, beside: float) -> "PullPace":
        """Return the pace after a pull.

        `alone` and `beside` are the mean seconds of a step before the pull and beside it, 0 if not
        known.

        It changes only where that is more than the noise of these times.
        """
        if not (alone > 0 and beside > 0):
            return self
        slower = (*self.slower, beside / alone - 1)[-KEPT:]
        if len(slower) < FEWEST:
            return replace(self, slower=slower)
        mean = statistics.fmean(slower)
        unsure = SURE * statistics.stdev(slower) / math.sqrt(len(slower))
        factor = DOWN if mean - unsure > ALLOWED else UP if mean + unsure < ALLOWED else 1.0
        rate = min(max(self.rate * factor, LEAST * self.begun), MOST * self.begun)
        if rate == self.rate:
            return replace(self, slower=slower)
        return replace(self, rate=rate, slower=())
