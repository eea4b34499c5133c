"""Pure: which saves are uploaded where there is no time for all of them.

Where uploads take longer than the schedule allows, nodes choose by themselves, and a step is
committed only when all of them have sent their part. If each went on with its newest save, nodes
whose uploads end at different moments would send different steps. So each sends every 2nd, 4th,
8th, … of them, as its own uploads need: what a slow node sends, a quick one sends, too.
"""

MARGIN = 1.25
"""An upload is given that much more time than it is expected to take."""
MOST = 1 << 20


def goes_first(later: int, left: int, room: float) -> bool:
    """Whether a later save takes the place of one that is on its way, before a node is gone: where
    both, of `later` bytes and of `left`, cannot be sent any more, but the later one can, or no less
    of it. `room` is how many bytes can."""
    fits = room / MARGIN
    return later + left > fits and (later <= fits or later <= left)


def stride(upload: float, interval: float) -> int:
    """One of how many scheduled saves is uploaded, where an upload and the time from one such save
    to the next take so many seconds."""
    found = 1
    while found * interval < upload * MARGIN and found < MOST:
        found *= 2
    return found


class Cadence:
    """Of the scheduled saves of one round, numbered through."""

    def __init__(self) -> None:
        self._interval = 0.0
        """Seconds between two of them; 0: not known."""
        self._last: tuple[int, float] | None = None
        self._awaited = 0.0
        """When the next one that passes will have come up, if one was left out since; 0: none."""

    def passes(self, number: int, now: float, upload: float) -> bool:
        """Whether the save of this number is uploaded: it comes up `now` (s), and an upload takes
        so many seconds."""
        if self._last is not None and number > self._last[0]:
            self._interval = (now - self._last[1]) / (number - self._last[0])
        self._last = number, now
        every = stride(upload, self._interval) if self._interval else 1
        self._awaited = now + every * self._interval if number % every else 0.0
        return not self._awaited

    def has_paused(self, now: float) -> bool:
        """Whether a save was left out, and the one that was to be uploaded in its place has not
        come: as in a long evaluation. True once."""
        paused = 0.0 < self._awaited < now
        if paused:
            self._awaited = 0.0
        return paused
