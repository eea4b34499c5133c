"""Computes which bytes of a stored chunk a wanted part of a tensor needs."""

from collections.abc import Sequence

from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.types import Item, Range

Box = tuple[Sequence[int], Sequence[int]]
"""Offsets and sizes of a part of a tensor."""


def overlap(
    item: Item, offsets: Sequence[int], sizes: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Return start and length per axis of what a stored chunk and a wanted part share, or None."""
    parts = []
    for axis, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        low = max(start, item.offsets[axis])
        high = min(start + size, item.offsets[axis] + item.sizes[axis])
        if high <= low:
            return None
        parts.append((low, high - low))
    return parts


def _raw_start(item: Item) -> int:
    """Return where the elements begin in the file."""
    return item.offset + item.length - encoding.nbytes(item.dtype, item.sizes)


def hull(item: Item, part: Sequence[tuple[int, int]]) -> Range:
    """Return the range of the file from the first to the last byte of a part of a chunk."""
    size, first, last = encoding.ITEM_SIZES[item.dtype], 0, 0
    stride = 1
    for axis in reversed(range(len(part))):
        start = part[axis][0] - item.offsets[axis]
        first += start * stride
        last += (start + part[axis][1] - 1) * stride
        stride *= item.sizes[axis]
    start = _raw_start(item)
    return start + first * size, start + (last + 1) * size
