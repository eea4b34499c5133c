"""Turns shares of a picture's width and height into what SVG takes (pure).

Widths are percentages, so that a picture fits a wide window and a phone without being scaled: its
texts and lines keep their size.
"""

from collections.abc import Sequence

from spotelastic.web.view.chart import ChartScale

Frame = tuple[int, int, int]
LARGE: Frame = (6, 228, 254)
"""A curve's top, its height, and where the labels below it stand, in pixels."""
SMALL: Frame = (6, 100, 124)
"""The same of a curve beside others."""
HEIGHTS = {"training": 14, "noticed": 14, "waiting": 9, "booting": 5, "resting": 3}
"""Of a node's states on the timeline, in pixels: they differ by more than their colours."""


def across(share: float) -> str:
    """Return a place, or a width, from left to right."""
    return f"{share * 100:.2f}%"


def up(share: float, frame: Frame) -> str:
    """Return a height above the bottom of the curve's part of its picture."""
    return f"{frame[0] + (1.0 - share) * frame[1]:.1f}"


def ends(scale: ChartScale) -> str:
    """Return the ends of an axis, from which a script works out the value at a place."""
    return f"{scale.low!r} {scale.high!r}" + (" log" if scale.is_logarithmic else "")


def path(line: Sequence[tuple[float, float]]) -> str:
    """Return a line within a box of 1000 by 1000; a single point is a short line."""
    places = [f"{x * 1000:.1f} {(1.0 - y) * 1000:.1f}" for x, y in line]
    return "M" + "L".join(places) + ("h1" if len(places) == 1 else "")


def anchor(share: float) -> str:
    """Return how a label lies at its tick, so that none is cut off at an end."""
    return "start" if share < 0.04 else "end" if share > 0.96 else "middle"
