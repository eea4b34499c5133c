"""Tells from the executed steps how fast the run comes on, and whether its loss is usual (pure)."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from spotelastic.model.progress import Point, Progress

RECENT = 3600.0
"""Seconds of steps that the pace is taken from: long enough to have interruptions in it."""
LOOKED_AT = 10_000
"""Newest steps among which a finite loss is looked for."""
SKEW = 60.0
"""Seconds by which the clocks of nodes may differ."""
NEWEST, HISTORY = 10, 500
"""The newest losses, all of which have to be out of the range of those before them."""
FAR = 3.0
"""How many times the range of that history a loss is above it to be far out."""


def pace(points: Sequence[Point], restarted: float = 0.0) -> float:
    """Return the seconds per step that counts, with pauses and repeated steps; 0: not known.

    `points` are in the order of their times. Those before the job was `restarted` say nothing: it
    stood still until then.
    """
    if not points or points[-1].at < restarted:
        return 0.0
    last = points[-1]
    begin = max(last.at - RECENT, restarted)
    first = points[bisect_left(points, begin, key=lambda point: point.at)]
    made = last.step - first.step
    return round((last.at - first.at) / made, 4) if made > 0 else 0.0


def not_finite_since(told: Iterable[Progress], points: Sequence[Point]) -> int:
    """Return the step since which the loss is NaN or infinite, as nodes tell; 0: it is not.

    Must never be told of a run whose loss is finite again: a node whose ranks report no loss any
    more says for ever what it was. Points have finite losses alone.
    """
    said = [each for each in told if each.not_finite]
    if not said:
        return 0
    newest = reversed(points[-LOOKED_AT:])
    finite_at = next((point.at for point in newest if point.loss is not None), 0.0)
    lasting = (each.not_finite for each in said if each.not_finite_at + SKEW >= finite_at)
    return min(lasting, default=0)


def usual_loss(points: Sequence[Point]) -> float | None:
    """Return what the loss was before the newest ones, if all of these are far above it; else None.

    One spike says nothing. The range is that of the middle nine tenths: spikes of the past count
    for nothing, either.
    """
    known = [p.loss for p in points[-NEWEST - HISTORY :] if p.loss is not None]
    newest, before = known[-NEWEST:], sorted(known[:-NEWEST])
    if len(before) < 5 * NEWEST or not all(map(math.isfinite, known)):
        return None
    low, middle, high = (before[int(len(before) * share)] for share in (0.05, 0.5, 0.95))
    room = max(high - low, abs(middle) * 0.1)
    return middle if min(newest) > high + FAR * room else None
