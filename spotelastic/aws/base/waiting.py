"""Waits for something in AWS by asking repeatedly, with growing pauses."""

import time
from collections.abc import Callable
from typing import TypeVar

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.clock import steady
from spotelastic.errors import Unavailable

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, timeout: float, longest: float = 2.0) -> T:
    """Asks ever more rarely until `look` answers something else than None, and returns that.

    Raises `Unavailable` naming `what` after `timeout` seconds.
    """
    deadline, backoff = steady() + timeout, Backoff(0.05, longest, factor=1.5)
    while (found := look()) is None:
        backoff = backoff.failed()
        if steady() + backoff.bound > deadline:
            raise Unavailable(f"{what}: not after {timeout:.0f} s")
        time.sleep(backoff.bound)
    return found
