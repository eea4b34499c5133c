"""Time as a value that is passed in.

Decisions receive ``now`` (seconds since the epoch, as a float) and never read a clock; what acts
reads it here, so that tests and simulations can replace it.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]

wall: Clock = time.time
"""Seconds since the epoch as this machine tells them; jumps when somebody sets its clock."""

steady: Clock = time.monotonic
"""Seconds that never go back: what deadlines on this machine are measured with."""


def _unbroken() -> Clock:
    begun = wall() - steady()
    return lambda: begun + steady()


unbroken: Clock = _unbroken()
"""Seconds since the epoch as told when this process started, counted steadily since.

What decides by the time of day and also waits (an agent) uses this one: when the clock is set, no
deadline passes and none moves away. Times that others tell are moved to it where they come in.
"""
