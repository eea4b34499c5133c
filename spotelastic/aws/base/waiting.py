"""Waiting for AWS, which tells the laptop nothing by itself."""

import time
from collections.abc import Callable
from typing import TypeVar

from spotelastic.clock import steady
from spotelastic.errors import Unavailable

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, timeout: float, longest: float = 2.0) -> T:
    """Asks ever more rarely until `look` answers something else than None, and returns that.

    Raises `Unavailable` naming `what` after `timeout` seconds.
    """
    deadline, pause = steady() + timeout, 0.05
    while (found := look()) is None:
        if steady() + pause > deadline:
            raise Unavailable(f"{what}: not after {timeout:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
    return found
