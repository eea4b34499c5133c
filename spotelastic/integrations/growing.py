"""Gives texts that grow a length that seldom changes.

A save has a place for each entry, with half as much room to spare. One that outgrows its place
costs a save: places are dealt out anew before the next one.
"""

import json
from typing import Any

LEAST = 16 << 10


def as_text(value: Any) -> str:
    """Return a value as JSON, filled up with spaces to a power of two."""
    text = json.dumps(value, default=float)
    length = LEAST
    while length < len(text):
        length *= 2
    return text.ljust(length)
