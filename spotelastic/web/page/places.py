"""Turns shares of a picture's width and height into what SVG takes (pure).

Widths are percentages, so that a picture fits a wide window and a phone without being scaled: its
texts and lines keep their size.
"""

from collections.abc import Sequence

CURVE_TOP, CURVE_HEIGHT = 6.0, 228.0
"""Where the curve lies in its picture, in pixels, as curve.html says, too."""


def across(share: float) -> str:
    """Return a place, or a width, from left to right."""
    return f"{share * 100:.2f}%"


def up(share: float) -> str:
    """Return a height above the bottom of the curve's part of its picture."""
    return f"{CURVE_TOP + (1.0 - share) * CURVE_HEIGHT:.1f}"


def path(line: Sequence[tuple[float, float]]) -> str:
    """Return a line within a box of 1000 by 1000; a single point is a short line."""
    places = [f"{x * 1000:.1f} {(1.0 - y) * 1000:.1f}" for x, y in line]
    return "M" + "L".join(places) + ("h1" if len(places) == 1 else "")


def anchor(share: float) -> str:
    """Return how a label lies at its tick, so that none is cut off at an end."""
    return "start" if share < 0.04 else "end" if share > 0.96 else "middle"
