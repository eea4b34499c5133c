"""Chooses how fast replicas are sent where nobody has said it."""

from pathlib import Path

SHARE = 0.1
"""Share of a network card's speed."""
UNKNOWN = 100e6
"""Bytes per second where the speed is not known."""


def usual_rate(interfaces: Path) -> float:
    """Return bytes per second, from the speed of the fastest network card below `interfaces`.

    The kernel tells it in Mbit/s, or -1, or nothing.
    """
    speeds = [0.0]
    for path in interfaces.glob("*/speed"):
        try:
            speeds.append(float(path.read_text()))
        except (OSError, ValueError):
            continue
    fastest = max(speeds) * 1e6 / 8
    return SHARE * fastest if fastest > 0 else UNKNOWN
