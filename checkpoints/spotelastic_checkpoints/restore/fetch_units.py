"""Decides which parts of a checkpoint to fetch for given ranges, and which of them in one request.

A unit is the smallest part that can be verified alone: a block of an item where blocks have
checksums of their own, otherwise the whole item. Only units that the ranges touch are fetched.
Nothing here does I/O.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from spotelastic_checkpoints.format import manifest
from spotelastic_checkpoints.format.layout import ALIGNMENT, aligned
from spotelastic_checkpoints.format.manifest import DIGITS
from spotelastic_checkpoints.types import Item, Range

GAP = 32 << 10
"""Bytes between two units that are read along, rather than asking twice."""


class CopyLocation(NamedTuple):
    """Where a copy of an item lies."""

    source: int
    """Number of the source."""
    file: Any
    """Name of the file, as the source knows it."""
    offset: int


@dataclass(frozen=True, slots=True)
class LocatedItem:
    """An item at its offset in the file it is fetched into, and where it can come from."""

    item: Item
    places: tuple[CopyLocation, ...]


@dataclass(frozen=True, slots=True)
class FetchUnit:
    """Bytes `start` to `end` of the target file, which are fetched and verified as one."""

    start: int
    end: int
    checksum: str
    """xxh3 (64 bits, hex); empty where the source itself verifies what it sends."""
    fqn: str
    places: tuple[CopyLocation, ...]

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.end - self.start

    def place(self, source: int) -> CopyLocation:
        """Return where the unit lies in this source."""
        return next(place for place in self.places if place.source == source)


@dataclass(frozen=True, slots=True, eq=False)
class FetchRequest:
    """Units that all lie in the same sources, and are neighbours in the first of them."""

    units: tuple[FetchUnit, ...]
    sources: frozenset[int]


def placed(items: Iterable[tuple[Item, tuple[CopyLocation, ...]]]) -> list[LocatedItem]:
    """Give each item an offset in the target file, in the order given, aligned as it was."""
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


def units_of(placed: LocatedItem) -> Iterator[FetchUnit]:
    """Yield the units of an item."""
    item = placed.item
    undivided = item.checksum and not item.blocks
    bounds = [(0, item.length)] if undivided else manifest.blocks(item)
    for number, (start, end) in enumerate(bounds):
        checksum = item.blocks[number * DIGITS :][:DIGITS] or item.checksum
        places = tuple(place._replace(offset=place.offset + start) for place in placed.places)
        yield FetchUnit(item.offset + start, item.offset + end, checksum, item.fqn, places)


def touched(items: Sequence[LocatedItem], ranges: Iterable[Range]) -> Iterator[FetchUnit]:
    """Yield the units that ranges of the target file touch. `items` are in the order of offsets."""
    done = 0
    for start, end in sorted(ranges):
        before = bisect_right(items, start, key=lambda placed: placed.item.offset) - 1
        for placed in islice(items, max(before, 0), None):
            if placed.item.offset >= end:
                break
            for unit in units_of(placed):
                if unit.start < end and unit.end > max(start, done):
                    yield unit
                    done = unit.end


def requests(units: Iterable[FetchUnit], most: int) -> list[FetchRequest]:
    """Group units into requests of at most `most` bytes, or of one unit.

    Files take turns, because stores send several objects faster than several ranges of one.
    """
    alike: dict[tuple[object, frozenset[int]], list[FetchUnit]] = defaultdict(list)
    for unit in units:
        sources = frozenset(place.source for place in unit.places)
        alike[unit.places[0][:2], sources].append(unit)
    files = [list(_cut(group, sources, most)) for (_, sources), group in alike.items()]
    return [found for turn in zip_longest(*files) for found in turn if found is not None]


def _cut(units: list[FetchUnit], sources: frozenset[int], most: int) -> Iterator[FetchRequest]:
    """Group the units of one file into requests."""
    units.sort(key=lambda unit: unit.places[0].offset)
    run: list[FetchUnit] = []
    begun = end = 0
    for unit in units:
        offset = unit.places[0].offset
        if run and (offset > end + GAP or offset + unit.length - begun > most):
            yield FetchRequest(tuple(run), sources)
            run = []
        if not run:
            begun = offset
        run.append(unit)
        end = offset + unit.length
    yield FetchRequest(tuple(run), sources)


def runs(units: Iterable[FetchUnit], source: int, most: int) -> Iterator[list[FetchUnit]]:
    """Group units into those that are neighbours in one source, of at most `most` bytes."""
    run: list[FetchUnit] = []
    for unit in sorted(units, key=lambda unit: _order(unit.place(source))):
        place = unit.place(source)
        if run:
            first, last = run[0].place(source), run[-1].place(source)
            apart = place.file != last.file or place.offset > last.offset + run[-1].length + GAP
            if apart or place.offset + unit.length - first.offset > most:
                yield run
                run = []
        run.append(unit)
    if run:
        yield run


def _order(place: CopyLocation) -> tuple[str, int]:
    return str(place.file), place.offset
