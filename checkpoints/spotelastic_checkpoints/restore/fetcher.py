"""Fetches ranges of a checkpoint from its sources into one file that a node's ranks restore from.

Bytes are received where the local ranks read them: in memory behind the file's own ranges. That
memory is reused once all ranks are past it. So it stays warm, and a restore needs little of it
however large the state is. A range that a rank keeps is copied to its own place in the file.

A rank must never use bytes that were not verified, or that have been given back. A range counts as
fetched only when all its units have arrived and match. Memory is written again only after each
local rank has said that it is past it. A unit that is fetched a second time, because the first
source is slow, is received in other memory.
"""

import heapq
import os
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import xxhash

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError, RestoreFailed
from spotelastic_checkpoints.format.layout import ALIGNMENT
from spotelastic_checkpoints.memory.extents import Extents, Lease
from spotelastic_checkpoints.memory.free_memory import mib, room
from spotelastic_checkpoints.restore import fetch_units
from spotelastic_checkpoints.restore.fetch_queue import LATE, FetchQueue
from spotelastic_checkpoints.restore.fetch_units import FetchRequest, FetchUnit, LocatedItem
from spotelastic_checkpoints.storage.hanging import forget_frames
from spotelastic_checkpoints.types import Moved, Range

MOST_LANES = 16
"""Largest number of lanes that work at the same time."""
ASKED = 64
"""Number of recent sets of ranges whose units are remembered. All ranks ask for the same ones."""

END = 1 << 62
"""An offset behind everything."""


class Reader(Protocol):
    """A connection to a source.

    One thread reads and closes it. `abort` may be called from another thread, and ends the read.
    """

    def read(self, file: Any, offset: int, target: memoryview) -> None:
        """Fill `target`. Raises `RestoreFailed`, after which the reader is not used again."""

    def abort(self) -> None:
        """End a read in another thread."""

    def close(self) -> None:
        """Close the connection."""


class RangeSource(Protocol):
    """A node or a storage that ranges can be fetched from."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def lanes(self) -> int:
        """Number of connections at the same time."""

    @property
    def most(self) -> int:
        """Largest number of bytes per read."""

    def open(self) -> Reader:
        """Connect. Raises `RestoreFailed`."""


@dataclass(frozen=True, slots=True)
class _Brought:
    """Where the units of a request have been received.

    Units that all ranks are past are removed. The leases are given back with the last of them.
    """

    leases: list[Lease]
    at: dict[int, tuple[Lease, int]]
    """For the start of each unit, its lease and the offset in it."""


class Fetcher:
    """Fetches one checkpoint into one file, for all local ranks of a node.

    Each rank enters, fetches from its own thread, and says what it is past.
    """

    def __init__(
        self,
        path: Path,
        items: Sequence[LocatedItem],
        sources: Sequence[RangeSource],
        readers: int = 1,
        late: float = LATE,
    ) -> None:
        """Create the file. Raises `ArenaFull` where there is no room for it.

        What a source has not sent after `late` seconds is asked of another one as well.
        """
        self.path = path
        self._items = items
        self._sources = sources
        self._readers = readers
        self._lock = threading.Lock()
        self._asked: dict[int, FetchRequest] = {}
        """For the start of each unit that was asked for, the request it is part of."""
        self._brought: dict[FetchRequest, _Brought] = {}
        self._passing: list[tuple[int, int]] = []
        """A heap of the ends and starts of units that were asked for."""
        self._kept: set[int] = set()
        """Starts of units that stay in the file."""
        self._settled: set[int] = set()
        """Starts of kept units that are in their own places."""
        self._settling = threading.Lock()
        # All ranks ask for the same ranges, first ahead and then as needed.
        self._touched = lru_cache(ASKED)(lambda ranges: tuple(fetch_units.touched(items, ranges)))
        self._passed: dict[int, int] = {}
        """For each local rank, the offset before which it needs nothing any more."""
        self._failed: CheckpointsError | None = None
        self._connected: dict[int, list[Reader]] = defaultdict(list)
        """For each source, the connections that no lane uses."""
        self._working: list[Reader] = []
        self._work = FetchQueue([source.lanes for source in sources], late=late)
        self._pool = ThreadPoolExecutor(MOST_LANES, thread_name_prefix="fetch")
        end = items[-1].item.offset + items[-1].item.length if items else 0
        try:
            path.touch(0o600)
            self._file = path.open("rb+", buffering=0)
            # Memory is allocated as pages are written: ranges that no rank needs take none.
            self._file.truncate(end)
        except OSError as error:
            raise ArenaFull(f"{path}: {error.strerror}") from error
        most = max((source.most for source in sources), default=0)
        self._extents = Extents(self._file.fileno(), end, most)
        crash_points.reached("fetch-opened")

    @property
    def shortage(self) -> str:
        """What memory was missing, if that has ended it; a new fetcher may find some."""
        return str(self._failed) if isinstance(self._failed, ArenaFull) else ""

    @property
    def held(self) -> int:
        """Bytes of memory, behind the file's own ranges, that ranks may still read."""
        with self._lock:
            leases = [lease for brought in self._brought.values() for lease in brought.leases]
            return sum(len(lease.memory) for lease in leases)

    @property
    def idle(self) -> int:
        """Number of open connections that no lane uses."""
        with self._lock:
            return sum(map(len, self._connected.values()))

    # -- local ranks ------------------------------------------------------------------------------

    def enter(self, reader: int) -> None:
        """Declare that this local rank may need anything from now on."""
        with self._lock:
            self._passed[reader] = 0

    def fetch(
        self, ranges: Iterable[Range], *, ahead: Iterable[Range] = (), keep: bool = True
    ) -> list[Moved]:
        """Wait until these ranges are available and verified; ranges `ahead` begin to be fetched.

        Returns those that are not in their own places. With `keep` they stay in their places when
        all ranks are past them. Raises `RestoreFailed`, `ArenaFull` or another error of the source,
        and raises it at every later call.
        """
        try:
            with self._lock:
                if self._failed is not None:
                    raise self._failed
                wanted = self._ask(ranges, keep=keep)
                asked = {self._asked[unit.start] for unit in wanted}
                self._ask(ahead, keep=False)
            self._work.wait(asked)
            if keep:
                self._settle(wanted)
        except CheckpointsError as error:
            self._give_up(error)
            raise
        crash_points.reached("fetch-verified")
        with self._lock:
            if self._failed is not None:
                raise self._failed
            return list(self._moved(wanted))

    def passed(self, reader: int, offset: int) -> None:
        """Declare that this local rank needs only kept ranges before the offset."""
        with self._lock:
            self._passed[reader] = offset
            if len(self._passed) == self._readers and self._failed is None:
                self._give_back(min(self._passed.values()))

    def remove(self) -> None:
        """Delete the file. Its memory is freed when the last process closes it."""
        self._end(RestoreFailed("the restore was ended: its copies have been deleted"))
        self._pool.shutdown(wait=False)

    # -- what is there ----------------------------------------------------------------------------

    def _ask(self, ranges: Iterable[Range], *, keep: bool) -> Sequence[FetchUnit]:
        """Return the units of these ranges, by offset, and begin to fetch those that are new."""
        wanted = self._touched(tuple(ranges))
        new = [unit for unit in wanted if unit.start not in self._asked]
        if keep:
            self._kept.update(unit.start for unit in wanted)
        if new:
            self._check_memory(sum(unit.length for unit in new))
            requests = fetch_units.requests(new, min(source.most for source in self._sources))
            for request in requests:
                for unit in request.units:
                    self._asked[unit.start] = request
                    heapq.heappush(self._passing, (unit.end, unit.start))
            for number in self._work.add(requests):
                self._pool.submit(self._lane, number)
        return wanted

    def _give_back(self, offset: int) -> None:
        """Give back the memory of units that end before the offset."""
        not_yet = []
        while self._passing and self._passing[0][0] <= offset:
            end, start = heapq.heappop(self._passing)
            request, kept = self._asked[start], start in self._kept
            if not self._work.is_done(request) or (kept and start not in self._settled):
                not_yet.append((end, start))
                continue
            if not kept:
                del self._asked[start]
            brought = self._brought.get(request)
            if brought is not None:
                brought.at.pop(start, None)  # A settled unit has been removed before.
                if not brought.at:
                    self._drop(self._brought.pop(request))
        for each in not_yet:
            heapq.heappush(self._passing, each)

    def _drop(self, brought: _Brought) -> None:
        for lease in brought.leases:
            self._extents.give_back(lease)

    def _moved(self, wanted: Iterable[FetchUnit]) -> Iterator[Moved]:
        left = [unit for unit in wanted if unit.start not in self._settled]
        at = {c.start: self._brought[self._asked[c.start]].at[c.start] for c in left}
        for start, end, lease, begun in _stretches(left, at):
            yield start, end, lease.offset + begun

    def _check_memory(self, needed: int) -> None:
        left = room(self.path.parent)
        if needed > left.free + self._extents.free:
            raise ArenaFull(f"{mib(needed)} more for a restore; {left}: {left.more}")

    def _give_up(self, error: CheckpointsError) -> None:
        """Fail, and free the memory as soon as the last lane has ended.

        It cannot be left to garbage collection, because the error's traceback refers to this
        object.
        """
        self._end(error)
        self._pool.shutdown(wait=True)
        with self._settling, self._lock:
            self._file.close()
            self._forget()

    def _end(self, error: CheckpointsError) -> None:
        self.path.unlink(missing_ok=True)
        with self._lock:
            self._failed = self._failed or error
            self._work.failed(self._failed)
            for reader in self._working:
                reader.abort()
            for readers in self._connected.values():
                for reader in readers:
                    reader.close()
            self._connected.clear()
            self._forget()

    def _forget(self) -> None:
        self._brought.clear()
        self._extents.clear()

    # -- lanes ------------------------------------------------------------------------------------

    def _lane(self, number: int) -> None:
        source, work = self._sources[number], self._work
        request = work.take(number)
        if request is None:
            return
        reader = self._idle(number)
        may_have_ended = reader is not None
        try:
            reader = reader or self._opened(number)
            while request is not None:
                try:
                    brought = self._bring(request, number, reader)
                except RestoreFailed:
                    if not may_have_ended or self._failed is not None:
                        raise
                    # A source may close connections that have been idle for long.
                    self._close(reader)
                    reader = None
                    reader = self._opened(number)
                    brought = self._bring(request, number, reader)
                may_have_ended = False
                self._place(request, brought)
                request = work.take(number)
            self._leave(number, reader)
            reader = None
        except RestoreFailed as error:
            work.lost(number, error)
        except CheckpointsError as error:
            forget_frames(error)  # The frames hold on to leases.
            work.failed(error)
        except OSError as error:
            work.failed(ArenaFull(f"{self.path}: {error.strerror}"))
        except Exception as error:
            work.failed(RestoreFailed(f"{source.name}: {type(error).__name__}: {error}"))
        finally:
            if reader is not None:
                self._close(reader)

    def _idle(self, number: int) -> Reader | None:
        """Return a connection that is open already, or None. It saves a handshake."""
        with self._lock:
            there = self._connected[number]
            return self._at_work(there.pop()) if there else None

    def _opened(self, number: int) -> Reader:
        reader = self._sources[number].open()
        with self._lock:
            return self._at_work(reader)

    def _at_work(self, reader: Reader) -> Reader:
        self._working.append(reader)
        if self._failed is not None:
            reader.abort()
        return reader

    def _close(self, reader: Reader) -> None:
        with self._lock:
            self._working.remove(reader)
            reader.close()

    def _leave(self, number: int, reader: Reader) -> None:
        with self._lock:
            self._working.remove(reader)
            if self._failed is None:
                self._connected[number].append(reader)
            else:
                reader.close()

    def _bring(self, request: FetchRequest, number: int, reader: Reader) -> _Brought:
        brought = _Brought([], {})
        try:
            for run in fetch_units.runs(request.units, number, self._sources[number].most):
                first, last = run[0].place(number), run[-1].place(number)
                length = last.offset + run[-1].length - first.offset
                lease = self._extents.lease(length, like=run[0].start)
                brought.leases.append(lease)
                self._fill(lease.memory, run, number, reader)
                for unit in run:
                    brought.at[unit.start] = lease, unit.place(number).offset - first.offset
        except BaseException:
            self._drop(brought)
            raise
        return brought

    def _fill(
        self, memory: memoryview, run: Sequence[FetchUnit], number: int, reader: Reader
    ) -> None:
        """Read units that are neighbours in the source.

        A unit that is longer than one read is verified once its last byte has arrived.
        """
        first, most = run[0].place(number), self._sources[number].most
        # A second read tells damage on the way from damage in the source.
        for damaged_before in (False, True):
            for begun in range(0, len(memory), most):
                reader.read(first.file, first.offset + begun, memory[begun : begun + most])
            damaged = next((c for c in run if not _matches(c, number, first.offset, memory)), None)
            if damaged is None:
                return
            if damaged_before:
                raise self._damaged(damaged, number)

    def _place(self, request: FetchRequest, brought: _Brought) -> None:
        """Make the request's units available, those that are kept in their own places."""
        settled: set[int] = set()
        while not self._published(request, brought, settled):
            with self._lock:
                kept = [c for c in request.units if c.start in self._kept - settled]
            self._write(kept, brought.at)
            settled.update(unit.start for unit in kept)
        crash_points.reached("fetch-wrote")

    def _published(
        self, request: FetchRequest, brought: _Brought, settled: Collection[int]
    ) -> bool:
        """Return False where more of the units have to be kept by now."""
        with self._lock:
            if any(c.start in self._kept and c.start not in settled for c in request.units):
                return False
            if self._work.is_done(request):  # Another source was faster.
                self._drop(brought)
                return True
            self._settled.update(settled)
            for start in settled:
                del brought.at[start]
            if brought.at:
                self._brought[request] = brought
            else:
                self._drop(brought)
            self._work.done(request)
            return True

    def _settle(self, wanted: Iterable[FetchUnit]) -> None:
        """Copy units to their own places that arrived before any rank wanted to keep them."""
        with self._settling:
            with self._lock:
                if self._failed is not None:
                    raise self._failed
                left = [unit for unit in wanted if unit.start not in self._settled]
                at = {c.start: self._brought[self._asked[c.start]].at[c.start] for c in left}
            try:
                self._write(left, at)
            except OSError as error:
                raise ArenaFull(f"{self.path}: {error.strerror}") from error
            with self._lock:
                self._settled.update(at)

    def _write(self, wanted: Iterable[FetchUnit], at: Mapping[int, tuple[Lease, int]]) -> None:
        """Copy units to their own places. Those that are neighbours in both are copied at once."""
        for start, end, lease, begun in _stretches(wanted, at):
            data, offset = lease.memory[begun : begun + end - start], start
            while data:
                count = os.pwrite(self._file.fileno(), data, offset)
                data, offset = data[count:], offset + count

    def _damaged(self, unit: FetchUnit, number: int) -> RestoreFailed:
        place = unit.place(number)
        return RestoreFailed(
            f"{self._sources[number].name}/{place.file}: {unit.fqn} does not match its checksum"
        )


def _matches(unit: FetchUnit, number: int, begun: int, data: memoryview) -> bool:
    if not unit.checksum:
        return True
    start = unit.place(number).offset - begun
    return xxhash.xxh3_64_hexdigest(data[start : start + unit.length]) == unit.checksum


def _stretches(
    wanted: Iterable[FetchUnit], at: Mapping[int, tuple[Lease, int]]
) -> Iterator[tuple[int, int, Lease, int]]:
    """Yield start and end of units that are contiguous in a lease, and where they begin in it."""
    found: tuple[int, int, Lease, int] | None = None
    for unit in wanted:
        lease, begun = at[unit.start]
        if found is not None:
            start, end, same, first = found
            near = lease is same and unit.start - end < ALIGNMENT
            if near and begun - first == unit.start - start:
                found = start, unit.end, lease, first
                continue
            yield found
        found = unit.start, unit.end, lease, begun
    if found is not None:
        yield found
