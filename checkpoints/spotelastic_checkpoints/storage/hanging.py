"""Calls that may never return, given up at a deadline.

What hangs in somebody else's code cannot be ended, only left behind, in a thread that nothing waits
for, not even the end of the process.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

MOST = 64
"""Calls at a time, those that were left behind among them: an outage must not fill the memory."""

T = TypeVar("T")


class Hanging:
    """Runs calls that may hang."""

    def __init__(self, most: int = MOST) -> None:
        self._room = threading.BoundedSemaphore(most)
        self._most = most

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """What `call` returns or raises; `TimeoutError` at the deadline. What it does later on
        happens all the same, so that it must not look at memory that may be another's by then."""
        if not self._room.acquire(timeout=seconds):
            raise TimeoutError(f"{self._most} calls are without an answer")
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
            finally:
                self._room.release()

        threading.Thread(target=run, name="storage", daemon=True).start()
        try:
            return answer.result(seconds)
        except TimeoutError as error:
            if answer.done():  # its own
                raise
            raise TimeoutError(f"no answer within {seconds:g} s") from error
