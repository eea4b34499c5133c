"""Decides how an object is cut into parts for upload, whichever client uploads it."""

from collections.abc import Iterator

WHOLE = 64 << 20
"""Bytes up to which an object is uploaded in one request."""
PART = 16 << 20
"""Bytes of a part, or more where there would be too many parts."""
PARTS_AT_ONCE = 4
"""Parts of an object in flight at the same time."""
MOST_PARTS = 9_000
"""Largest number of parts; S3 allows 10,000."""


def part_size(nbytes: int) -> int:
    """Return the bytes of a part of an object with `nbytes`."""
    return max(PART, -(-nbytes // MOST_PARTS))


def cut(data: memoryview, size: int) -> Iterator[memoryview]:
    """Yield views of `size` bytes; the last one has the rest."""
    return (data[start : start + size] for start in range(0, len(data), size))
