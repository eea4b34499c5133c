"""Sends signals, and handles them in a command that must clean up before it ends.

The signals handled are Ctrl-C, SIGTERM and SIGHUP.
"""

import os
import signal
import sys
from types import FrameType
from typing import Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(pid: int, sig: int) -> bool:
    """Send a signal; return False if the process has ended or belongs to another user."""
    try:
        os.kill(pid, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Signals:
    """Turns the first signal into `KeyboardInterrupt`, and ignores later ones during the clean-up.

    Child processes run in their own sessions, so a terminal's Ctrl-C reaches this process alone.
    """

    def __init__(self) -> None:
        self.meaning = "stopping"
        """The word printed at a signal: what the command does now."""
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    @property
    def stopping(self) -> bool:
        """Whether a signal has arrived."""
        return self._received is not None

    @property
    def exit_code(self) -> int:
        """The shell's exit code for the signal that arrived: 128 plus its number."""
        return 128 + (self._received or signal.SIGINT)

    def ignore(self) -> None:
        """Ignore the stopping signals from now on."""
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)

    def __enter__(self) -> Self:
        for each in STOPPING:
            self._before[each] = signal.signal(each, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.ignore()
        self._received = signal.Signals(number)
        if number == signal.SIGHUP:
            _leave_terminal()
        print(f"\n{self.meaning}", file=sys.stderr, flush=True)
        raise KeyboardInterrupt


def _leave_terminal() -> None:
    """Redirect output to /dev/null.

    The terminal is gone, and writing to it would fail during clean-up.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
