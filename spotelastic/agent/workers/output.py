"""Decides which file each output stream of a worker goes to, and whether it is shown (pure).

By default both streams of a worker share one file, and every line is shown. A stream that is
redirected or teed gets a file of its own; a redirected one is no longer shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
