"""Ends what an agent has started, once, when it is over or when a second signal asks for it.

Must never happen: that the handler of a signal closes anything itself. It may have interrupted that
very work, whose locks are held then, and would wait for itself.
"""

import _thread
import os
import threading
from collections.abc import Callable


class AgentEnding:
    """Calls `close` once."""

    def __init__(
        self, close: Callable[[], None], leave: Callable[[int], object] = os._exit
    ) -> None:
        self._close = close
        self._leave = leave
        self._begun = threading.Lock()
        """Held from the begin of the end on."""

    def close(self) -> None:
        """Close. If that has begun at once, this does not return: the process ends."""
        if self._begun.acquire(blocking=False):
            self._close()
        else:
            threading.Event().wait()

    def at_once(self, code: int) -> None:
        """Have another thread close, and then end the process; for the handler of a signal.

        Nothing happens where the end has begun.
        """
        if self._begun.acquire(blocking=False):
            _thread.start_new_thread(self._end, (code,))  # `Thread` has locks of its own

    def _end(self, code: int) -> None:
        try:
            self._close()
        finally:
            self._leave(code)
