"""Ctrl-C and its kin while a command holds things that must be undone in order."""

import os
import signal
import sys
from types import FrameType
from typing import Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """The first signal raises `KeyboardInterrupt`; none that follows disturbs the undoing.

    Children run in sessions of their own, so that a terminal's Ctrl-C reaches this process alone.
    """

    def __init__(self) -> None:
        self.meaning = "stopping"
        """What the command does at a signal, in the word that it answers with."""
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    @property
    def stopping(self) -> bool:
        """Somebody asked for the end."""
        return self._received is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self._received or signal.SIGINT)

    def ignore(self) -> None:
        """From now on nothing interrupts."""
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
    """It is gone, and writing to it would fail in the middle of the undoing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
