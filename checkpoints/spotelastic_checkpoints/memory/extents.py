"""Shared memory that is used again, piece by piece, in a file beyond what else lies in it.

Fresh memory costs more than a copy into it: its pages are found, cleared, accounted for and mapped
one by one. Memory that was given back here stays mapped, and is taken first.
"""

import mmap
import os
import threading
from dataclasses import dataclass, field

from spotelastic_checkpoints.format.layout import ALIGNMENT
from spotelastic_checkpoints.memory.prefault import populate

PAGE = mmap.ALLOCATIONGRANULARITY
LEAST_MAPPED, MOST_MAPPED = 64 << 20, 1 << 30
"""Bytes that are mapped at a time: as much again as there is, since each map takes a descriptor."""


@dataclass(eq=False, slots=True)
class Extent:
    """Filled from its beginning, and anew once all that lay in it has been given back. No two
    leases share a page."""

    offset: int
    """In the file."""
    memory: memoryview
    used: int = 0
    there: int = 0
    """Bytes that have been used before."""
    leases: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Lease:
    """Memory of the file at `offset`, until it is given back."""

    extent: Extent = field(repr=False)
    offset: int
    memory: memoryview


class Extents:
    """Of `size` bytes each, or of one lease's; thread-safe. `begin` is where they may begin."""

    def __init__(self, descriptor: int, begin: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = _up(size + ALIGNMENT)
        self._lock = threading.Lock()
        self._end = self._mapped = _up(begin)
        """Of what is in extents, and of the last map."""
        self._begin = self._end
        self._map = memoryview(b"")
        self._free: list[Extent] = []
        self._filling: Extent | None = None

    def lease(self, length: int, like: int) -> Lease:
        """Memory for `length` bytes, aligned as the offset `like` is. Raises OSError."""
        shift = like % ALIGNMENT
        with self._lock:
            extent = self._with_room(_up(shift + length))
            first, fresh = extent.used, extent.there
            extent.used += _up(shift + length)
            extent.there = last = max(fresh, extent.used)
            extent.leases += 1
        if last > fresh:
            # A full file system is an error here; to use a page that cannot be had ends a process.
            os.posix_fallocate(self._descriptor, extent.offset + fresh, last - fresh)
            populate(extent.memory[fresh:last])
        start = first + shift
        return Lease(extent, extent.offset + start, extent.memory[start : start + length])

    def give_back(self, lease: Lease) -> None:
        """Nobody uses it any more."""
        extent = lease.extent
        with self._lock:
            extent.leases -= 1
            if not extent.leases:
                extent.used = 0
                if extent is not self._filling:
                    self._free.append(extent)

    @property
    def free(self) -> int:
        """Bytes in memory that nobody uses."""
        with self._lock:
            return sum(extent.there for extent in self._free)

    def clear(self) -> None:
        """What is leased stays until it is dropped."""
        with self._lock:
            self._free.clear()
            self._filling = None
            self._map = memoryview(b"")
            self._mapped = self._end

    def _with_room(self, length: int) -> Extent:
        extent = self._filling
        if extent is not None and length <= len(extent.memory) - extent.used:
            return extent
        if extent is not None and not extent.leases:
            self._free.append(extent)
        found = next((each for each in self._free if len(each.memory) >= length), None)
        if found is not None:
            self._free.remove(found)
        self._filling = found or self._new(max(self._size, _up(length)))
        return self._filling

    def _new(self, length: int) -> Extent:
        left = self._mapped - self._end
        if left < length:
            have = self._mapped - self._begin
            self._end = self._mapped
            left = max(length, LEAST_MAPPED, min(have, MOST_MAPPED))
            os.ftruncate(self._descriptor, self._end + left)
            self._map = memoryview(mmap.mmap(self._descriptor, left, offset=self._end))
            self._mapped += left
        at = len(self._map) - left
        self._end += length
        return Extent(self._end - length, self._map[at : at + length])


def _up(size: int) -> int:
    return -(-size // PAGE) * PAGE
