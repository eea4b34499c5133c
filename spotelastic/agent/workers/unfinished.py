"""Lines of workers that have no end yet: `print("saving...", end="", flush=True)`, a prompt."""

from collections.abc import Callable

from spotelastic.clock import steady

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
