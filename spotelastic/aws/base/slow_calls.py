"""Tells a person who waits that AWS does not answer: a network that drops packets is silent for
minutes otherwise.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

AFTER = 3.0
"""Seconds without an answer after which it is told."""
_listeners: list[tuple[Callable[[str], None], float]] = []


@contextmanager
def told(say: Callable[[str], None], after: float = AFTER) -> Iterator[None]:
    """Call `say` with a line, on another thread, when a call in this block takes that long."""
    _listeners.append((say, after))
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Watch one call; `what` completes "trying to ..."."""
    with ExitStack() as over:
        for say, after in _listeners:
            line = f"AWS has not answered yet, still trying to {what}"
            timer = threading.Timer(after, say, (line,))
            timer.daemon = True
            timer.start()
            over.callback(timer.cancel)
        yield
