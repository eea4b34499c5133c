"""Waits for something in AWS by asking repeatedly, with growing pauses."""

import time
from collections.abc import Callable
from typing import TypeVar

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.clock import Clock, steady
from spotelastic.errors import Unavailable

T = TypeVar("T")


def until(
    look: Callable[[], T | None],
    what: str,
    timeout: float,
    longest: float = 2.0,
    *,
    clock: Clock = steady,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Asks ever more rarely until `look` answers something else than None, and returns that.

    What takes minutes is not given up because AWS cannot answer for a moment: a look that is not
    answered is repeated. Raises `Unavailable` naming `what` after `timeout` seconds.
    """
    deadline, backoff = clock() + timeout, Backoff(0.05, longest, factor=1.5)
    while True:
        unanswered = ""
        try:
            if (found := look()) is not None:
                return found
        except Unavailable as error:
            unanswered = f" ({error})"
        backoff = backoff.failed()
        if clock() + backoff.bound > deadline:
            raise Unavailable(f"{what}: not after {timeout:.0f} s{unanswered}")
        sleep(backoff.bound)
