"""Reads the environment that a process was started with, from /proc."""

import time
from pathlib import Path

BEGINS_WITHIN = 1.0
"""Seconds that the kernel may take to begin a program, on a machine that is busy."""
_HAS_NO_PROGRAM = 0x4 | 0x200000
"""Flags of a process that is ending, and of a thread of the kernel."""


def environment_of(pid: int, within: float = BEGINS_WITHIN) -> bytes:
    """Return the environment that a process was started with, as /proc has it. Raises `OSError`.

    A process that has just begun a program has none for a moment, also when its starter has been
    told that it runs. That moment is waited for: it would be taken for somebody else's process.
    """
    environment, deadline = Path(f"/proc/{pid}/environ"), time.monotonic() + within
    while not (found := environment.read_bytes()):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, flags, env_end = stat[0], int(stat[6]), int(stat[48])
        has_none = env_end or state in "ZX" or flags & _HAS_NO_PROGRAM
        if has_none or time.monotonic() > deadline:
            return environment.read_bytes()  # it may have come in between
        time.sleep(0.001)
    return found
