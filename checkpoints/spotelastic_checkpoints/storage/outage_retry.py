"""Repeats requests to an object store that does not answer, for a limited time.

A store that does not answer must never be taken for a damaged checkpoint, because the run would
then go back to an older one. So it is asked again, and when time is up the error still says that it
was the store.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.errors import StorageUnavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OutagePatience:
    """How long work waits for a store that is away, and how often it asks again."""

    within: float = 300.0
    """Seconds after which the store is given up."""
    first: float = 0.2
    """The shortest back-off, in seconds."""
    most: float = 5.0
    """The longest back-off, in seconds."""
    worth_a_word: float = 5.0
    """The back-off, in seconds, from which an outage is reported."""


RESTORE_PATIENCE = OutagePatience()


class OutageRetry:
    """Repeats the requests of everything that a round restores on this node; thread-safe."""

    def __init__(
        self,
        tell: Callable[[str], None],
        who: str = "a restore",
        patience: OutagePatience = RESTORE_PATIENCE,
    ) -> None:
        """`tell` is called with a message, once per outage; `who` names the waiting work in it."""
        self._tell = tell
        self._who = who
        self._patience = patience
        self._lock = threading.Lock()
        self._told = False
        self._over = threading.Event()

    def ask(self, call: Callable[[], T]) -> T:
        """Return the result of `call`. Raises `StorageUnavailable` when the store stays away."""
        patience = self._patience
        deadline = time.monotonic() + patience.within
        backoff = Backoff(patience.first, patience.most)
        while True:
            try:
                return call()
            except StorageUnavailable as error:
                backoff = backoff.failed()
                wait = backoff.bound
                if wait >= patience.worth_a_word:
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
