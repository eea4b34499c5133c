"""Cuts the part of a slot that a rank uploads into files of about 32 MiB.

Each file is uploaded in one request, several at the same time, and only the file that failed is
repeated. A multipart upload would cost two more requests, and could be left behind unfinished.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from spotelastic_checkpoints.format.layout import ALIGNMENT
from spotelastic_checkpoints.types import Item

FILE = 32 << 20
"""Bytes beyond which a file takes no further items. A larger item has a file of its own."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A file to upload: bytes `start` to `end` of a slot, and the items in them."""

    start: int
    end: int
    items: tuple[Item, ...]

    def placed(self) -> tuple[Item, ...]:
        """Return the items with offsets in the file instead of the slot."""
        return tuple(
            msgspec.structs.replace(item, offset=item.offset - self.start) for item in self.items
        )


def cut(items: Sequence[Item], end: int, most: int = FILE) -> list[Cut]:
    """Cut the first `end` bytes of a slot, whose items are given in the order of their offsets.

    Tensors stay aligned, so a file may begin with the last few bytes of the item before it.
    """
    return list(_cuts(items, end, most))


def _cuts(items: Sequence[Item], end: int, most: int) -> Iterator[Cut]:
    start = first = 0
    for number, item in enumerate(items):
        if number > first and item.offset + item.length - start > most:
            yield Cut(start, items[number - 1].offset + items[number - 1].length,
                      tuple(items[first:number]))  # fmt: skip
            start, first = item.offset // ALIGNMENT * ALIGNMENT, number
    yield Cut(start, end, tuple(items[first:]))
