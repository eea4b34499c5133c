"""How long a restore, or a command, waits for an object store that is away.

Must never happen: a store that does not answer is taken for a checkpoint that is damaged, and the
run goes back to an older one. So it is asked again, and when patience ends the error still says
that it was the store.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.errors import StorageUnavailable

T = TypeVar("T")

WITHIN = 300.0
"""Seconds that the store may be away during a restore."""
RETRY_FIRST, RETRY_MOST = 0.2, 5.0
"""Seconds between attempts. An outage that has lasted until the longest is worth a word."""


class OutageRetry:
    """For all that a round restores on this node; thread-safe. `tell` hears of an outage once.

    Others than a restore say who waits, for how many seconds at most, and from which time between
    two attempts on that is worth a word.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        who: str = "a restore",
        within: float | None = None,
        worth_a_word: float | None = None,
    ) -> None:
        self._tell = tell
        self._who = who
        self._within = within
        self._worth_a_word = worth_a_word
        self._lock = threading.Lock()
        self._told = False
        self._over = threading.Event()

    def ask(self, call: Callable[[], T]) -> T:
        """The answer; raises `StorageUnavailable` when the store stays away."""
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
        """Nobody needs the answers any more; in any thread."""
        self._over.set()

    def _complain(self, error: StorageUnavailable) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            self._tell(f"{self._who} is waiting for the object store: {error}")
