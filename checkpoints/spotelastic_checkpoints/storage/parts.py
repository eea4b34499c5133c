"""How an object is cut on its way up, whatever takes it there."""

from collections.abc import Iterator

WHOLE = 64 << 20
"""Bytes up to which an object goes up in one request."""
PART = 16 << 20
"""Bytes per part of a larger one, and more where there would be too many."""
PARTS_AT_ONCE = 4
MOST_PARTS = 9_000


def part_size(nbytes: int) -> int:
    """Bytes per part of an object of `nbytes`."""
    return max(PART, -(-nbytes // MOST_PARTS))


def cut(data: memoryview, size: int) -> Iterator[memoryview]:
    """Views of `size` bytes, the last one of what is left."""
    return (data[start : start + size] for start in range(0, len(data), size))
