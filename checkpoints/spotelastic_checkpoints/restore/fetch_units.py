"""Pure: what is fetched of a checkpoint, in which units, and which of them travel together.

A cell is the smallest part that can be verified alone: a block of an item where it has checksums of
its own, otherwise the whole item. Only cells that a rank's ranges touch are fetched.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import NamedTuple

from spotelastic_checkpoints.format import manifest
from spotelastic_checkpoints.format.layout import ALIGNMENT, aligned
from spotelastic_checkpoints.format.manifest import DIGITS
from spotelastic_checkpoints.types import Item, Range

GAP = 32 << 10
"""Bytes between two cells that are read along rather than asked around."""


class CopyLocation(NamedTuple):
    """Where a copy of something lies. `source` is a number, `file` the source's own name."""

    source: int
    file: object
    offset: int


@dataclass(frozen=True, slots=True)
class LocatedItem:
    """An item at its offset in the file that it is copied to, and all places it can come from."""

    item: Item
    places: tuple[CopyLocation, ...]


@dataclass(frozen=True, slots=True)
class FetchUnit:
    """Bytes `start` to `end` of the target file."""

    start: int
    end: int
    checksum: str
    """Empty where the source itself vouches for what it sends."""
    fqn: str
    places: tuple[CopyLocation, ...]

    @property
    def length(self) -> int:
        return self.end - self.start

    def place(self, source: int) -> CopyLocation:
        return next(place for place in self.places if place.source == source)


@dataclass(frozen=True, slots=True, eq=False)
class FetchRequest:
    """Cells that all lie in the same sources, as neighbours in the first of them."""

    cells: tuple[FetchUnit, ...]
    sources: frozenset[int]


def placed(items: Iterable[tuple[Item, tuple[CopyLocation, ...]]]) -> list[LocatedItem]:
    """Laid out one after the other, in the order given; aligned in memory as they were."""
    found = []
    end = 0
    for item, places in items:
        offset = aligned(end) + item.offset % ALIGNMENT
        if offset - ALIGNMENT >= end:
            offset -= ALIGNMENT
        moved = Item(
            item.fqn, item.path, item.dtype, item.shape, item.offsets, item.sizes, item.rank,
            offset, item.length, item.checksum, item.blocks,
        )  # fmt: skip
        found.append(LocatedItem(moved, places))
        end = offset + item.length
    return found


def cells_of(placed: LocatedItem) -> Iterator[FetchUnit]:
    item = placed.item
    undivided = item.checksum and not item.blocks
    bounds = [(0, item.length)] if undivided else manifest.blocks(item)
    for number, (start, end) in enumerate(bounds):
        checksum = item.blocks[number * DIGITS :][:DIGITS] or item.checksum
        places = tuple(place._replace(offset=place.offset + start) for place in placed.places)
        yield FetchUnit(item.offset + start, item.offset + end, checksum, item.fqn, places)


def touched(items: Sequence[LocatedItem], ranges: Iterable[Range]) -> Iterator[FetchUnit]:
    """The cells of these items (in order of their offsets) that ranges of the target touch."""
    done = 0
    for start, end in sorted(ranges):
        before = bisect_right(items, start, key=lambda placed: placed.item.offset) - 1
        for placed in islice(items, max(before, 0), None):
            if placed.item.offset >= end:
                break
            for cell in cells_of(placed):
                if cell.start < end and cell.end > max(start, done):
                    yield cell
                    done = cell.end


def requests(cells: Iterable[FetchUnit], most: int) -> list[FetchRequest]:
    """Each of at most `most` bytes, or of one cell; files take turns, in the order of their
    offsets: stores send several objects faster than several ranges of one."""
    alike: dict[tuple[object, frozenset[int]], list[FetchUnit]] = defaultdict(list)
    for cell in cells:
        sources = frozenset(place.source for place in cell.places)
        alike[cell.places[0][:2], sources].append(cell)
    files = [list(_cut(group, sources, most)) for (_, sources), group in alike.items()]
    return [found for turn in zip_longest(*files) for found in turn if found is not None]


def _cut(cells: list[FetchUnit], sources: frozenset[int], most: int) -> Iterator[FetchRequest]:
    """Of cells that lie in one file."""
    cells.sort(key=lambda cell: cell.places[0].offset)
    run: list[FetchUnit] = []
    begun = end = 0
    for cell in cells:
        offset = cell.places[0].offset
        if run and (offset > end + GAP or offset + cell.length - begun > most):
            yield FetchRequest(tuple(run), sources)
            run = []
        if not run:
            begun = offset
        run.append(cell)
        end = offset + cell.length
    yield FetchRequest(tuple(run), sources)


def runs(cells: Iterable[FetchUnit], source: int, most: int) -> Iterator[list[FetchUnit]]:
    """Pure: as the cells lie in one source: neighbours there together, at most `most` bytes."""
    run: list[FetchUnit] = []
    for cell in sorted(cells, key=lambda cell: _order(cell.place(source))):
        place = cell.place(source)
        if run:
            first, last = run[0].place(source), run[-1].place(source)
            apart = place.file != last.file or place.offset > last.offset + run[-1].length + GAP
            if apart or place.offset + cell.length - first.offset > most:
                yield run
                run = []
        run.append(cell)
    if run:
        yield run


def _order(place: CopyLocation) -> tuple[str, int]:
    return str(place.file), place.offset
