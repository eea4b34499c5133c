"""Copies cells of a checkpoint into one file of shared memory, from whoever has them.

Bytes are received where the local ranks read them: in memory beyond the file's own ranges, which
is used again when all of them are past it. So it stays warm, and a restore takes little of it
however large the state is. What a rank keeps is copied to its own place in the file.

Must never happen: a rank uses what was not verified, or what has been given back. A range counts as
fetched only when all its cells have come and match; nobody writes to the memory that it came to
until each local rank has said that it is past it; and who brings something a second time, because
the first is slow, has other memory for it.
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
from typing import Protocol

import xxhash

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.crash_points import Stage
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError, RestoreFailed
from spotelastic_checkpoints.format.layout import ALIGNMENT
from spotelastic_checkpoints.memory.extents import Extents, Lease
from spotelastic_checkpoints.memory.free_memory import mib, room
from spotelastic_checkpoints.restore import fetch_units
from spotelastic_checkpoints.restore.fetch_queue import FetchQueue
from spotelastic_checkpoints.restore.fetch_units import FetchRequest, FetchUnit, LocatedItem
from spotelastic_checkpoints.storage.hanging import forget_frames
from spotelastic_checkpoints.types import Moved, Range

MOST_LANES = 16
ASKED = 64
"""What was asked for last, by all ranks, of which the cells are remembered."""

END = 1 << 62
"""Behind everything."""


class Reader(Protocol):
    """A connection. One thread reads, and closes it; `abort` may be called from another, and ends
    the read."""

    def read(self, file: object, offset: int, target: memoryview) -> None:
        """Fills `target`; raises `RestoreFailed`, and is not used again then."""
        ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class RangeSource(Protocol):
    """`lanes` connections at a time, reads of at most `most` bytes."""

    @property
    def name(self) -> str: ...

    @property
    def lanes(self) -> int: ...

    @property
    def most(self) -> int: ...

    def open(self) -> Reader:
        """Raises `RestoreFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class _Brought:
    """Where a request's cells have come to: by their start, the lease and the offset in it. Those
    that all ranks are past are taken out, and the leases given back with the last one."""

    leases: list[Lease]
    at: dict[int, tuple[Lease, int]]


class Fetcher:
    """One checkpoint's way into one file; used by all `readers` local ranks, each of which enters,
    fetches from its own thread, and passes. Raises `ArenaFull` where there is no room for a file.
    """

    def __init__(
        self,
        path: Path,
        items: Sequence[LocatedItem],
        sources: Sequence[RangeSource],
        readers: int = 1,
    ) -> None:
        self.path = path
        self._items = items
        self._sources = sources
        self._readers = readers
        self._lock = threading.Lock()
        self._asked: dict[int, FetchRequest] = {}
        """With whom cells come that were asked for, by their start."""
        self._brought: dict[FetchRequest, _Brought] = {}
        self._passing: list[tuple[int, int]] = []
        """Ends and starts of cells that were asked for, a heap."""
        self._kept: set[int] = set()
        """The starts of cells that stay,"""
        self._settled: set[int] = set()
        """and of those of them that are in their own places."""
        self._settling = threading.Lock()
        # All ranks ask for the same, first ahead.
        self._touched = lru_cache(ASKED)(lambda ranges: tuple(fetch_units.touched(items, ranges)))
        self._passed: dict[int, int] = {}
        """By local rank: nothing before this offset is needed by it."""
        self._failed: CheckpointsError | None = None
        self._connected: dict[int, list[Reader]] = defaultdict(list)
        """By source, those that no lane uses."""
        self._working: list[Reader] = []
        self._work = FetchQueue([source.lanes for source in sources])
        self._pool = ThreadPoolExecutor(MOST_LANES, thread_name_prefix="fetch")
        end = items[-1].item.offset + items[-1].item.length if items else 0
        try:
            path.touch(0o600)
            self._file = path.open("rb+", buffering=0)
            # Pages come as they are written: what nobody needs takes no memory.
            self._file.truncate(end)
        except OSError as error:
            raise ArenaFull(f"{path}: {error.strerror}") from error
        most = max((source.most for source in sources), default=0)
        self._extents = Extents(self._file.fileno(), end, most)
        crash_points.reached(Stage.FETCH_OPENED)

    @property
    def shortage(self) -> str:
        """What room was missing, if that has ended it: another may find it by now."""
        return str(self._failed) if isinstance(self._failed, ArenaFull) else ""

    # -- local ranks ------------------------------------------------------------------------------

    def enter(self, reader: int) -> None:
        """This local rank may need anything from now on."""
        with self._lock:
            self._passed[reader] = 0

    def fetch(
        self, ranges: Iterable[Range], *, ahead: Iterable[Range] = (), keep: bool = True
    ) -> list[Moved]:
        """Returns when these ranges are there and verified, with what of them is not in its own
        place; what is `ahead` begins to come.

        To `keep` them makes them stay, in their places, when all ranks are past them. Raises
        `RestoreFailed`, `ArenaFull`, and whatever else the source raised; so does every later call
        then.
        """
        try:
            with self._lock:
                if self._failed is not None:
                    raise self._failed
                wanted = self._ask(ranges, keep=keep)
                asked = {self._asked[cell.start] for cell in wanted}
                self._ask(ahead, keep=False)
            self._work.wait(asked)
            if keep:
                self._settle(wanted)
        except CheckpointsError as error:
            self._give_up(error)
            raise
        crash_points.reached(Stage.FETCH_VERIFIED)
        with self._lock:
            if self._failed is not None:
                raise self._failed
            return list(self._moved(wanted))

    def passed(self, reader: int, offset: int) -> None:
        """This local rank needs nothing before the offset any more but what it keeps."""
        with self._lock:
            self._passed[reader] = offset
            if len(self._passed) == self._readers and self._failed is None:
                self._give_back(min(self._passed.values()))

    def remove(self) -> None:
        """The file goes at once, its memory with the last who has it open."""
        self._end(RestoreFailed("what was to be restored has been put away"))
        self._pool.shutdown(wait=False)

    # -- what is there ----------------------------------------------------------------------------

    def _ask(self, ranges: Iterable[Range], *, keep: bool) -> Sequence[FetchUnit]:
        """In the order of their offsets."""
        wanted = self._touched(tuple(ranges))
        new = [cell for cell in wanted if cell.start not in self._asked]
        if keep:
            self._kept.update(cell.start for cell in wanted)
        if new:
            self._check_memory(sum(cell.length for cell in new))
            requests = fetch_units.requests(new, min(source.most for source in self._sources))
            for request in requests:
                for cell in request.cells:
                    self._asked[cell.start] = request
                    heapq.heappush(self._passing, (cell.end, cell.start))
            for number in self._work.add(requests):
                self._pool.submit(self._lane, number)
        return wanted

    def _give_back(self, offset: int) -> None:
        """The memory of what ends before the offset."""
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
                brought.at.pop(start, None)  # none where it was settled
                if not brought.at:
                    self._drop(self._brought.pop(request))
        for each in not_yet:
            heapq.heappush(self._passing, each)

    def _drop(self, brought: _Brought) -> None:
        for lease in brought.leases:
            self._extents.give_back(lease)

    def _moved(self, wanted: Iterable[FetchUnit]) -> Iterator[Moved]:
        left = [cell for cell in wanted if cell.start not in self._settled]
        at = {c.start: self._brought[self._asked[c.start]].at[c.start] for c in left}
        for start, end, lease, begun in _stretches(left, at):
            yield start, end, lease.offset + begun

    def _check_memory(self, needed: int) -> None:
        left = room(self.path.parent)
        if needed > left.free + self._extents.free:
            raise ArenaFull(f"{mib(needed)} more for a restore; {left}: {left.more}")

    def _give_up(self, error: CheckpointsError) -> None:
        """The memory goes now, when the last lane has ended: the error's traceback holds on to
        us."""
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
                    # Whoever holds something ends connections that have been idle for long.
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
            forget_frames(error)  # which hold on to what they have leased
            work.failed(error)
        except OSError as error:
            work.failed(ArenaFull(f"{self.path}: {error.strerror}"))
        except Exception as error:
            work.failed(RestoreFailed(f"{source.name}: {type(error).__name__}: {error}"))
        finally:
            if reader is not None:
                self._close(reader)

    def _idle(self, number: int) -> Reader | None:
        """A connection that is there already saves a handshake."""
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
            for run in fetch_units.runs(request.cells, number, self._sources[number].most):
                first, last = run[0].place(number), run[-1].place(number)
                length = last.offset + run[-1].length - first.offset
                lease = self._extents.lease(length, like=run[0].start)
                brought.leases.append(lease)
                self._fill(lease.memory, run, number, reader)
                for cell in run:
                    brought.at[cell.start] = lease, cell.place(number).offset - first.offset
        except BaseException:
            self._drop(brought)
            raise
        return brought

    def _fill(
        self, memory: memoryview, run: Sequence[FetchUnit], number: int, reader: Reader
    ) -> None:
        """With cells that are neighbours in the source; one that is longer than what is read at
        once counts once the last byte has come and all of it matches."""
        first, most = run[0].place(number), self._sources[number].most
        # A second look tells what was damaged on the way from what lies damaged in the source.
        for damaged_before in (False, True):
            for begun in range(0, len(memory), most):
                reader.read(first.file, first.offset + begun, memory[begun : begun + most])
            damaged = next((c for c in run if not _matches(c, number, first.offset, memory)), None)
            if damaged is None:
                return
            if damaged_before:
                raise self._damaged(damaged, number)

    def _place(self, request: FetchRequest, brought: _Brought) -> None:
        """It is there, for all; what stays, in its own place."""
        settled: set[int] = set()
        while not self._published(request, brought, settled):
            with self._lock:
                kept = [c for c in request.cells if c.start in self._kept - settled]
            self._write(kept, brought.at)
            settled.update(cell.start for cell in kept)
        crash_points.reached(Stage.FETCH_WROTE)

    def _published(
        self, request: FetchRequest, brought: _Brought, settled: Collection[int]
    ) -> bool:
        """False where more of it is to stay by now."""
        with self._lock:
            if any(c.start in self._kept and c.start not in settled for c in request.cells):
                return False
            if self._work.is_done(request):  # by another source
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
        """What had come before anybody kept it goes to its own place."""
        with self._settling:
            with self._lock:
                if self._failed is not None:
                    raise self._failed
                left = [cell for cell in wanted if cell.start not in self._settled]
                at = {c.start: self._brought[self._asked[c.start]].at[c.start] for c in left}
            try:
                self._write(left, at)
            except OSError as error:
                raise ArenaFull(f"{self.path}: {error.strerror}") from error
            with self._lock:
                self._settled.update(at)

    def _write(self, wanted: Iterable[FetchUnit], at: Mapping[int, tuple[Lease, int]]) -> None:
        """Each to its own place. Neighbours in both go at once."""
        for start, end, lease, begun in _stretches(wanted, at):
            data, offset = lease.memory[begun : begun + end - start], start
            while data:
                count = os.pwrite(self._file.fileno(), data, offset)
                data, offset = data[count:], offset + count

    def _damaged(self, cell: FetchUnit, number: int) -> RestoreFailed:
        place = cell.place(number)
        return RestoreFailed(
            f"{self._sources[number].name}/{place.file}: {cell.fqn} does not match its checksum"
        )


def _matches(cell: FetchUnit, number: int, begun: int, data: memoryview) -> bool:
    if not cell.checksum:
        return True
    start = cell.place(number).offset - begun
    return xxhash.xxh3_64_hexdigest(data[start : start + cell.length]) == cell.checksum


def _stretches(
    wanted: Iterable[FetchUnit], at: Mapping[int, tuple[Lease, int]]
) -> Iterator[tuple[int, int, Lease, int]]:
    """Start and end of what lies together in a lease, and where it begins there."""
    found: tuple[int, int, Lease, int] | None = None
    for cell in wanted:
        lease, begun = at[cell.start]
        if found is not None:
            start, end, same, first = found
            near = lease is same and cell.start - end < ALIGNMENT
            if near and begun - first == cell.start - start:
                found = start, cell.end, lease, first
                continue
            yield found
        found = cell.start, cell.end, lease, begun
    if found is not None:
        yield found
