"""Repeats requests to an object store that does not answer, for a limited time.

A store that does not answer must never be taken for a damaged checkpoint, because the run would
then go back to an older one. So it is asked again, and when time is up the error still says that it
was the store.
"""

import random
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
_JITTER = (0.5, 1.0)
"""A fleet that was turned away at once does not come back at once."""


class OutageRetry:
    """Repeats the requests of everything that a round restores on this node; thread-safe."""

    def __init__(
        self,
        tell: Callable[[str], None],
        who: str = "a restore",
        patience: OutagePatience = RESTORE_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`tell` is called with a message, once per outage; `who` names the waiting work in it.

        `wait` waits so many seconds of `clock`, and returns whether the answers are not needed any
        more.
        """
        self._tell = tell
        self._who = who
        self._patience = patience
        self._lock = threading.Lock()
        self._told = False
        self._over = threading.Event()
        self._clock = clock
        self._wait = wait or self._over.wait

    def ask(self, call: Callable[[], T]) -> T:
        """Return the result of `call`. Raises `StorageUnavailable` when the store stays away."""
        patience = self._patience
        deadline = self._clock() + patience.within
        backoff = Backoff(patience.first, patience.most, jitter=_JITTER)
        while True:
            try:
                return call()
            except StorageUnavailable as error:
                backoff = backoff.failed()
                if backoff.bound >= patience.worth_a_word:
                    self._complain(error)
                wait = backoff.pause(random.uniform)
                if self._clock() + wait > deadline or self._wait(wait):
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
