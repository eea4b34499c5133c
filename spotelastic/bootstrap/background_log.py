"""Writes a process's log from a thread of its own.

On a node the log goes to the journal and to the instance's console, which takes 115,200 baud: some
100 lines a second. Must never happen: an agent waits for that. Its lease would run out, and
training would stop. So callers never wait; what is too much is left out, and counted.
"""

import atexit
import logging
import queue
import threading
from contextlib import suppress

from spotelastic_checkpoints.log_records import Write

logger = logging.getLogger(__name__)

MOST = 2000
"""Lines that wait."""
END_WITHIN = 2.0
"""Seconds that a process which ends gives to its last lines."""


class BackgroundLog:
    """Hands lines to `write` in their order. It is called with each line, by any thread."""

    def __init__(self, write: Write, most: int = MOST) -> None:
        self._write = write
        self._lines: queue.Queue[str] = queue.Queue(most)
        self._left_out = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()
        atexit.register(self.flush)

    def __call__(self, line: str) -> None:
        """Write the line soon, unless too many wait."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1

    def flush(self, within: float = END_WITHIN) -> bool:
        """Wait until all lines are written, for at most `within` seconds; return whether they are.

        Call it before the process becomes another program.
        """
        done = self._lines.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._lines.unfinished_tasks, within)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            with suppress(OSError, ValueError):  # nobody reads it any more; training goes on
                self._write(line)
            if self._left_out and self._lines.empty():
                left_out, self._left_out = self._left_out, 0
                logger.warning(f"{left_out} lines of this log are left out: they were too many")
            self._lines.task_done()
