"""Progress while a job runs: live on a terminal, plain lines anywhere else."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from spotelastic.clock import Clock, steady
from spotelastic.model.progress import Event, Status

EVERY = 5.0
"""Seconds between two plain lines of progress where nothing else happens."""


class View(Protocol):
    """Shows progress between entering and leaving it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def say(self, line: str) -> None:
        """One line that stays."""
        ...

    def event(self, event: Event) -> None: ...

    def status(self, status: Status) -> None:
        """How things stand now; replaces what was shown before."""
        ...


def view() -> View:
    return Live() if sys.stdout.isatty() else Plain(lambda line: print(line, flush=True))


class Plain:
    """A line when something happens, and one every few seconds while training goes on."""

    def __init__(self, write: Callable[[str], object], clock: Clock = steady) -> None:
        self._write = write
        self._clock = clock
        self._told = (0, "")
        self._due = 0.0
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, line: str) -> None:
        self._write(line)

    def event(self, event: Event) -> None:
        from spotelastic.cli.output import event_line

        self._write(event_line(event))

    def status(self, status: Status) -> None:
        from spotelastic.cli.output import status_line

        now = self._clock()
        line = status_line(status)
        changed = (status.round, status.state) != self._told
        if line == self._line or not (changed or now >= self._due):
            return
        self._told, self._due, self._line = (status.round, status.state), now + EVERY, line
        self._write(line)


class Live:
    """A table of nodes that is redrawn in place; events scroll by above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(markup=False)
        self._live = RichLive(console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def event(self, event: Event) -> None:
        from spotelastic.cli.output import event_row

        self._console.print(event_row(event), highlight=False)

    def status(self, status: Status) -> None:
        from spotelastic.cli.output import status_table

        self._live.update(status_table(status))
