"""Repeats requests to an object store that does not answer, for a limited time.

A store that does not answer must never be taken for a damaged checkpoint, because the run would
then go back to an older one. So it is asked again, and when time is up the error still says that it
was the store.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.errors import StorageUnavailable

T = TypeVar("T")

WITHIN = 300.0
"""Seconds for which the store may be away during a restore."""
RETRY_FIRST, RETRY_MOST = 0.2, 5.0
"""Shortest and longest back-off, in seconds. An outage is reported once the longest is reached."""


class OutageRetry:
    """Repeats the requests of everything that a round restores on this node; thread-safe."""

    def __init__(
        self,
        tell: Callable[[str], None],
        who: str = "a restore",
        within: float | None = None,
        worth_a_word: float | None = None,
    ) -> None:
        """`tell` is called with a message, once per outage.

        `who` names the waiting work in the message. `within` are the seconds to wait at most, and
        `worth_a_word` is the back-off (s) from which an outage is reported.
        """
        self._tell = tell
        self._who = who
        self._within = within
        self._worth_a_word = worth_a_word
        self._lock = threading.Lock()
        self._told = False
        self._over = threading.Event()

    def ask(self, call: Callable[[], T]) -> T:
        """Return the result of `call`. Raises `StorageUnavailable` when the store stays away."""
        within = WITHIN if self._within is None else self._within
        deadline, backoff = time.monotonic() + within, Backoff(RETRY_FIRST, RETRY_MOST)
        while True:
            try:
                return call()
            except StorageUnavailable as error:
                backoff = backoff.failed()
                wait = backoff.bound
                if wait >= (self._worth_a_word or RETRY_MOST):
                    self._complain(error)
                if time.monotonic() + wait > deadline or self._over.wait(wait):
                    raise

    def end(self) -> None:
        """End all waits, because the answers are not needed any more.

        May be called in any thread.
        """
        self._over.set()

    def _complain(self, error: StorageUnavailable) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            self._tell(f"{self._who} is waiting for the object store: {error}")
