"""Allocates memory piece by piece from a file in shared memory, and reuses what is given back.

Fresh memory costs more than a copy into it: its pages are found, cleared, accounted for and mapped
one by one. Memory that was given back stays mapped, and is used first.
"""

import mmap
import os
import threading
from dataclasses import dataclass, field

from spotelastic_checkpoints.format.layout import ALIGNMENT
from spotelastic_checkpoints.memory.prefault import populate

PAGE = mmap.ALLOCATIONGRANULARITY
LEAST_MAPPED, MOST_MAPPED = 64 << 20, 1 << 30
"""Bounds of the bytes mapped at a time. Each map takes a descriptor, so sizes double in between."""


@dataclass(eq=False, slots=True)
class Extent:
    """A piece of the file, filled from its beginning and reused once no lease is left.

    No two leases share a memory page.
    """

    offset: int
    """Where it begins in the file."""
    memory: memoryview
    used: int = 0
    """Bytes that were leased since it was last empty."""
    there: int = 0
    """Bytes from its beginning that are backed by memory."""
    leases: int = 0
    """Number of leases that were not given back."""


@dataclass(frozen=True, eq=False, slots=True)
class Lease:
    """Memory at `offset` in the file, until it is given back."""

    extent: Extent = field(repr=False)
    offset: int
    memory: memoryview


class Extents:
    """The extents of one file; thread-safe.

    Each has `size` bytes, or as many as a larger lease needs. They begin behind the first `begin`
    bytes of the file.
    """

    def __init__(self, descriptor: int, begin: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = _up(size + ALIGNMENT)
        self._lock = threading.Lock()
        self._end = _up(begin)
        """End of the last extent in the file."""
        self._mapped = self._end
        """End of the last map."""
        self._begin = self._end
        self._map = memoryview(b"")
        self._free: list[Extent] = []
        self._filling: Extent | None = None

    def lease(self, length: int, like: int) -> Lease:
        """Return memory for `length` bytes whose offset is aligned as the offset `like` is.

        Raises OSError where there is no memory.
        """
        shift = like % ALIGNMENT
        with self._lock:
            extent = self._with_room(_up(shift + length))
            first, fresh = extent.used, extent.there
            extent.used += _up(shift + length)
            extent.there = last = max(fresh, extent.used)
            extent.leases += 1
        if last > fresh:
            # A full file system is an error here. Touching a page that does not exist would end the
            # process.
            os.posix_fallocate(self._descriptor, extent.offset + fresh, last - fresh)
            populate(extent.memory[fresh:last])
        start = first + shift
        return Lease(extent, extent.offset + start, extent.memory[start : start + length])

    def give_back(self, lease: Lease) -> None:
        """Return the memory of a lease, which must not be used any more."""
        extent = lease.extent
        with self._lock:
            extent.leases -= 1
            if not extent.leases:
                extent.used = 0
                if extent is not self._filling:
                    self._free.append(extent)

    @property
    def free(self) -> int:
        """Bytes in memory that are not in use."""
        with self._lock:
            return sum(extent.there for extent in self._free)

    def clear(self) -> None:
        """Forget all extents. Memory that is leased stays valid until the lease is dropped."""
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
