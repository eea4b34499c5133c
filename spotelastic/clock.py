"""Time as a value that is passed in.

Decisions receive ``now`` (seconds since the epoch, as a float) and never read a clock; what acts
reads it here, so that tests and simulations can replace it.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]

wall: Clock = time.time
"""Seconds since the epoch: what is written into records that other machines read."""

steady: Clock = time.monotonic
"""Seconds that never go back: what deadlines on this machine are measured with."""
