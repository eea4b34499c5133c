"""Tells a person who waits that a cloud does not answer.

Otherwise, nothing would be heard for minutes from a network that drops packets.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from spotelastic.clock import steady

AFTER = 3.0
"""Seconds without an answer after which it is told, and least seconds between two lines."""
_listeners: list[tuple[Callable[[str], None], float]] = []


@contextmanager
def told(say: Callable[[str], None], after: float = AFTER) -> Iterator[None]:
    """Call `say` with a line, on another thread, when a call in this block takes that long."""
    last = float("-inf")

    def seldom(line: str) -> None:  # calls that are made beside each other take long together
        nonlocal last
        if steady() - last >= after:
            last = steady()
            say(line)

    _listeners.append((seldom, after))
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Watch one call; `what` completes "trying to ..."."""
    with ExitStack() as over:
        for say, after in _listeners:
            line = f"still trying to {what}: no answer for {after:g} s"
            timer = threading.Timer(after, say, (line,))
            timer.daemon = True
            timer.start()
            over.callback(timer.cancel)
        yield
