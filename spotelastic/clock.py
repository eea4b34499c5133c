"""Defines the clocks of the product, as functions that are passed in and can be replaced.

Decisions receive `now` (seconds since the epoch, a float) and never read a clock. Code with effects
reads one of these clocks; tests and simulations pass their own.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]

wall: Clock = time.time
"""Seconds since the epoch by this machine's clock. It jumps when the clock is set."""

steady: Clock = time.monotonic
"""Seconds that never go backwards. Deadlines on this machine are measured with it."""


def _unbroken() -> Clock:
    begun = wall() - steady()
    return lambda: begun + steady()


unbroken: Clock = _unbroken()
"""Seconds since the epoch, read once when this process starts and then counted steadily.

For code that uses the time of day and also waits (an agent): when the clock is set, no deadline
passes early and none moves away. Times from other machines are converted to it on arrival.
"""
