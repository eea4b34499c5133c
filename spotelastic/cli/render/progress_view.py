"""Shows the progress of a job: a live picture on a terminal, plain lines anywhere else."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Self

from spotelastic.cli.render.sparkline import LossSeries
from spotelastic.client.progress import Update
from spotelastic.clock import Clock, wall
from spotelastic.model.progress import Cost, Event, Point, Status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live as RichLive

QUIET = frozenset({"committed"})
"""Events that are not shown one by one, because the status line shows them."""
ONCE = frozenset({"schedule"})
"""Events that are shown the first time alone: `spotelastic events` lists how it went on."""
EVERY = 5.0
"""Seconds between two plain lines of progress if nothing else happens."""

UNABLE = frozenset({"", "dumb", "unknown"})
"""Terminals, by TERM, that cannot move the cursor."""
RECENT = 200
"""Lines that are kept to redraw a terminal after its size changed."""


class ProgressView:
    """Shows progress between entering and leaving it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, line: str) -> None:
        """Print one line that stays."""

    def event(self, event: Event) -> None:
        """Print an event, unless the status tells it."""

    def status(self, status: Status) -> None:
        """Show the current status in place of the previous one."""

    def cost(self, cost: Cost) -> None:
        """Show what the cluster costs beside the status."""

    def earlier(self, points: Iterable[Point]) -> None:
        """Take the steps that were made before anybody watched."""


def show(view: ProgressView, update: Update) -> None:
    """Show one update of a job."""
    match update:
        case Status():
            view.status(update)
        case Event():
            view.event(update)
        case _:
            view.say(str(update))


def _has_a_line(event: Event, told: set[str]) -> bool:
    """Whether an event has a line of its own. `told` gains what is not shown again."""
    if event.kind in QUIET or event.kind in told:
        return False
    told.update(ONCE & {event.kind})
    return True


def view(environ: Mapping[str, str] = os.environ) -> ProgressView:
    """Return the view that fits stdout: lines, unless a terminal can redraw what it shows."""
    if sys.stdout.isatty() and environ.get("TERM", "").lower() not in UNABLE:
        return Live()
    return Plain(lambda line: print(line, flush=True))


class Plain(ProgressView):
    """Prints a line when something happens, and one every few seconds during training."""

    def __init__(self, write: Callable[[str], object], clock: Clock = wall) -> None:
        self._write = write
        self._clock = clock
        self._told = (0, "")
        self._due = 0.0
        self._line = ""
        self._once: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line."""
        self._write(line)

    def event(self, event: Event) -> None:
        """Print an event as a line."""
        from spotelastic.cli.render.tables import event_line

        if _has_a_line(event, self._once):
            self._write(event_line(event))

    def status(self, status: Status) -> None:
        """Print the status, if it has changed or some seconds have passed."""
        from spotelastic.cli.render.tables import status_line
        from spotelastic.model.headline import silence

        now = self._clock()
        line = silence(status, now) or status_line(status)
        changed = (status.round, status.state) != self._told
        if line == self._line or not (changed or now >= self._due):
            return
        self._told, self._due, self._line = (status.round, status.state), now + EVERY, line
        self._write(line)


class Live(ProgressView):
    """Redraws a job in place, with events scrolling by above it. Its last picture stays.

    A terminal that changes its size moves its contents, and no program can tell where to. The
    screen is then cleared, and as many of the newest lines as fit are shown again.
    """

    def __init__(self, console: "Console | None" = None, clock: Clock = wall) -> None:
        from rich.console import Console

        self._console = console or Console(markup=False)
        self._clock = clock
        self._recent: deque[RenderableType] = deque(maxlen=RECENT)
        self._once: set[str] = set()
        self._losses = LossSeries()
        self._status: Status | None = None
        self._cost: Cost | None = None
        self._size = self._console.size
        self._live = self._drawn("")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._fit()
        self._live.stop()
        if self._status is not None:
            self._console.print(self._picture(self._status), highlight=False)

    def say(self, line: str) -> None:
        """Print a line above the job."""
        from rich.text import Text

        self._print(Text(line))

    def event(self, event: Event) -> None:
        """Print an event above the job, unless the picture shows what it tells."""
        from spotelastic.cli.render.tables import event_row

        if _has_a_line(event, self._once):
            self._print(event_row(event))

    def status(self, status: Status) -> None:
        """Draw the job as it is now."""
        self._status = status
        self._losses.feed(status.step, status.loss)
        self._fit()
        self._live.update(self._picture(status), refresh=True)

    def cost(self, cost: Cost) -> None:
        """Show this with the next status."""
        self._cost = cost

    def earlier(self, points: Iterable[Point]) -> None:
        """Begin the loss curve with these."""
        for point in points:
            self._losses.feed(point.step, point.loss)

    def _picture(self, status: Status) -> "RenderableType":
        from spotelastic.cli.render.job_view import JobPicture, job_view

        shown = JobPicture(status, self._losses.values, self._cost)
        return job_view(shown, self._clock(), *self._console.size)

    def _drawn(self, shown: "RenderableType") -> "RichLive":
        from rich.live import Live as RichLive

        return RichLive(shown, console=self._console, auto_refresh=False, transient=True)

    def _print(self, shown: "RenderableType") -> None:
        self._fit()
        self._recent.append(shown)
        self._console.print(shown, highlight=False)

    def _fit(self) -> None:
        size = self._console.size
        if size == self._size:
            return
        self._size = size
        table = self._live.renderable if self._status is None else self._picture(self._status)
        self._live.stop()
        self._console.clear()
        for shown in self._newest(size.height - self._height(table) - 1):
            self._console.print(shown, highlight=False)
        # A new Live: the old one would erase lines that it takes for its table.
        self._live = self._drawn(table)
        self._live.start(refresh=True)

    def _newest(self, lines: int) -> "list[RenderableType]":
        """Return as many of the newest lines as fit, the oldest first."""
        fitting: list[RenderableType] = []
        for shown in reversed(self._recent):
            lines -= self._height(shown)
            if lines < 0:
                break
            fitting.append(shown)
        return fitting[::-1]

    def _height(self, shown: "RenderableType") -> int:
        return len(self._console.render_lines(shown, pad=False))
