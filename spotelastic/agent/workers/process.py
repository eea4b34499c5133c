"""Small Linux process facilities: names, parent-death signals. Linux only, no dependencies."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def name_process(name: str) -> None:
    """What `ps -o comm` shows; at most 15 characters."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent: int, sig: int = signal.SIGKILL) -> None:
    """Be killed when the thread that made this process ends; at once if it already has."""
    _libc.prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
