"""Decides which saves are uploaded when uploads are too slow for all of them.

A step is committed only when all nodes have uploaded their part of it, and each node chooses by
itself. If each sent its newest save, nodes whose uploads end at different moments would send
different steps. So each node sends every 2nd, 4th, 8th, … scheduled save, as its own uploads
require: what a slow node sends, a fast one sends too. Nothing here waits or does I/O.
"""

MARGIN = 1.25
"""Factor by which an upload may take longer than expected."""
MOST = 1 << 20
"""Largest stride: at least one of so many scheduled saves is uploaded."""


def goes_first(later: int, left: int, room: float) -> bool:
    """Return whether a later save replaces the one being uploaded, on a node that is about to go.

    `later` and `left` are the bytes of the later save and the rest of the current one; `room` is
    how many bytes can still be sent. The later one replaces it if both cannot be sent, and the
    later one fits or is no larger than that rest.
    """
    fits = room / MARGIN
    return later + left > fits and (later <= fits or later <= left)


def stride(upload: float, interval: float) -> int:
    """Return n where every n-th scheduled save is uploaded: a power of two.

    `upload` are the seconds that one upload takes, `interval` those between two scheduled saves.
    """
    found = 1
    while found * interval < upload * MARGIN and found < MOST:
        found *= 2
    return found


class Cadence:
    """Chooses among the scheduled saves of one round, which are numbered consecutively."""

    def __init__(self) -> None:
        self._interval = 0.0
        """Seconds between two scheduled saves; 0 while unknown."""
        self._last: tuple[int, float] | None = None
        """Number and time of the last scheduled save."""
        self._awaited = 0.0
        """When the next save that will be uploaded is expected, if one was left out since the last;
        else 0.
        """

    def passes(self, number: int, now: float, upload: float) -> bool:
        """Return whether the save of this number is uploaded.

        It is sealed at `now`, and an upload takes `upload` seconds.
        """
        if self._last is not None and number > self._last[0]:
            self._interval = (now - self._last[1]) / (number - self._last[0])
        self._last = number, now
        every = stride(upload, self._interval) if self._interval else 1
        self._awaited = now + every * self._interval if number % every else 0.0
        return not self._awaited

    def has_paused(self, now: float) -> bool:
        """Return whether a save was left out and the one to be uploaded instead is overdue.

        That happens in a long evaluation, for example. Returns True only once.
        """
        paused = 0.0 < self._awaited < now
        if paused:
            self._awaited = 0.0
        return paused
