"""Decides which file each output stream of a worker goes to, and whether it is shown (pure).

By default both streams of a worker share one file, and every line is shown. A stream that is
redirected or teed gets a file of its own; a redirected one is no longer shown.

A line may have no end yet: `print("saving...", end="", flush=True)`, a prompt. It is shown at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from spotelastic.clock import steady

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
_BITS: Mapping[str, int] = {"stdout": 1, "stderr": 2}


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams of local ranks, as torchrun writes them: 1 stdout, 2 stderr, 3 both, 0 none."""

    everyone: int = 0
    ranks: Mapping[int, int] = field(default_factory=dict)

    def holds(self, local_rank: int, stream: Stream) -> bool:
        return bool(self.ranks.get(local_rank, self.everyone) & _BITS[stream])


@dataclass(frozen=True, slots=True)
class Output:
    """How one run wants its workers' output."""

    redirects: Selection = Selection()
    tee: Selection = Selection()
    shown: frozenset[int] | None = None
    """Local ranks whose lines are shown; None: all."""
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Strings by stream: lines that contain one of them also go to `filtered_<stream>.log`."""

    def route(self, rank: int, local_rank: int, stream: Stream) -> "Route":
        teed = self.tee.holds(local_rank, stream)
        redirected = self.redirects.holds(local_rank, stream)
        visible = self.shown is None or local_rank in self.shown
        return Route(
            file=f"rank-{rank}.{stream}.log" if teed or redirected else f"rank-{rank}.log",
            shown=visible and (teed or not redirected),
            needles=self.filters.get(stream, ()) if visible else (),
            apart=teed,
        )


@dataclass(frozen=True, slots=True)
class Route:
    """Where one stream of one worker goes."""

    file: str
    """Name of the file in the round's folder."""
    shown: bool
    needles: tuple[str, ...] = ()
    apart: bool = False
    """Whether it is shown on the launcher's stream of the same name."""


# -- lines ----------------------------------------------------------------------------------------

LineSink = Callable[[int, int, str], None]
"""Receives (rank, local rank, line without its end). A line that ends in a carriage return keeps
it: the next line replaces it. What has no end yet is `Unfinished`: the next one goes on with it.
"""

SHORT = 3
"""Characters of a piece that only shows that something goes on, as a dot does."""
DOTS_EVERY = 10.0
"""Seconds between two such pieces that are passed on as lines."""


class Unfinished(str):
    """Text that the worker may go on with in the same line."""

    __slots__ = ()


class WholeLines:
    """Makes a sink of lines one of any text: each piece of an unfinished line becomes a line."""

    def __init__(self, sink: LineSink, clock: Callable[[], float] = steady) -> None:
        self._sink = sink
        self._clock = clock
        self._held: dict[int, str] = {}
        """Pieces that wait for the next one, by rank."""
        self._due: dict[int, float] = {}
        """When short pieces are passed on again, by rank of an unfinished line."""

    def __call__(self, rank: int, local_rank: int, text: str) -> None:
        piece, now = self._held.pop(rank, "") + text, self._clock()
        if isinstance(text, Unfinished):
            if len(text) <= SHORT and now < self._due.get(rank, 0.0):
                self._held[rank] = piece
                return
            self._due[rank] = now + DOTS_EVERY
        elif self._due.pop(rank, None) is not None and not piece:
            return  # the end of a line that was passed on already
        self._sink(rank, local_rank, piece)
