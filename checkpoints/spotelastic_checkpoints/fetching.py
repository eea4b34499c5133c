"""Copies cells of a checkpoint into one file of shared memory, from whoever has them.

Bytes go through a small buffer that stays warm: writing to fresh pages of a mapping would cost a
fault for each. What all local ranks have read gives its memory back, so that what comes next finds
memory that is warm, too, and a restore takes little of it however large the state is.

Must never happen: a rank uses what was not verified, or what has been given back. A range counts as
fetched only when all its cells have come and match; and it is given back only when each local rank
has said that it is past it.
"""

import heapq
import os
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import xxhash

from spotelastic_checkpoints import cells, holes, stages
from spotelastic_checkpoints.cells import Cell, Placed, Request
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError, RestoreFailed
from spotelastic_checkpoints.layout import ALIGNMENT
from spotelastic_checkpoints.room import mib, room
from spotelastic_checkpoints.stages import Stage
from spotelastic_checkpoints.wire import Range
from spotelastic_checkpoints.work import Work

MOST_LANES = 16

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


class Source(Protocol):
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


class Fetcher:
    """One checkpoint's way into one file; used by all `readers` local ranks, each of which enters,
    fetches from its own thread, and passes. Raises `ArenaFull` where there is no room for a file.
    """

    def __init__(
        self, path: Path, items: Sequence[Placed], sources: Sequence[Source], readers: int = 1
    ) -> None:
        self.path = path
        self._items = items
        self._sources = sources
        self._readers = readers
        self._lock = threading.Lock()
        self._asked: dict[int, Request] = {}
        """With whom cells come that were asked for, by their start."""
        self._passing: list[tuple[int, int]] = []
        """Their ends and starts, a heap,"""
        self._kept: list[int] = []
        """and the starts of those that stay, in order."""
        self._passed: dict[int, int] = {}
        """By local rank: nothing before this offset is needed by it."""
        self._failed: CheckpointsError | None = None
        self._buffers: list[bytearray] = []
        self._connected: dict[int, list[Reader]] = defaultdict(list)
        """By source, those that no lane uses."""
        self._working: list[Reader] = []
        self._work = Work([source.lanes for source in sources])
        self._pool = ThreadPoolExecutor(MOST_LANES, thread_name_prefix="fetch")
        last = items[-1].item if items else None
        try:
            path.touch(0o600)
            self._file = path.open("rb+", buffering=0)
            # Pages come as they are written: what nobody needs takes no memory.
            self._file.truncate(last.offset + last.length if last else 0)
        except OSError as error:
            raise ArenaFull(f"{path}: {error.strerror}") from error
        stages.reached(Stage.FETCH_OPENED)

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
    ) -> None:
        """Returns when these ranges are there and verified; what is `ahead` begins to come.

        To `keep` them makes them stay when all ranks are past them. Raises `RestoreFailed`,
        `ArenaFull`, and whatever else the source raised; so does every later call then.
        """
        try:
            with self._lock:
                if self._failed is not None:
                    raise self._failed
                wanted = self._ask(ranges, keep=keep)
                self._ask(ahead, keep=False)
            self._work.wait(wanted)
        except CheckpointsError as error:
            self._give_up(error)
            raise
        stages.reached(Stage.FETCH_VERIFIED)

    def passed(self, reader: int, offset: int) -> None:
        """This local rank needs nothing before the offset any more but what it keeps."""
        with self._lock:
            self._passed[reader] = offset
            if len(self._passed) == self._readers and self._failed is None:
                for start, end in self._given_back(min(self._passed.values())):
                    with suppress(OSError):  # it goes with the file
                        holes.punch(self._file.fileno(), start, end)

    def remove(self) -> None:
        """The file goes at once, its memory with the last who has it open."""
        self._end(RestoreFailed("what was to be restored has been put away"))
        self._pool.shutdown(wait=False)

    # -- what is there ----------------------------------------------------------------------------

    def _ask(self, ranges: Iterable[Range], *, keep: bool) -> set[Request]:
        """With whom it comes."""
        wanted = list(cells.touched(self._items, ranges))
        new = [cell for cell in wanted if cell.start not in self._asked]
        if keep:
            self._kept = sorted({*self._kept, *(cell.start for cell in wanted)})
        if new:
            self._check_memory(sum(cell.length for cell in new))
            requests = cells.requests(new, min(source.most for source in self._sources))
            for request in requests:
                for cell in request.cells:
                    self._asked[cell.start] = request
                    heapq.heappush(self._passing, (cell.end, cell.start))
            for number in self._work.add(requests):
                self._pool.submit(self._lane, number)
        return {self._asked[cell.start] for cell in wanted}

    def _given_back(self, offset: int) -> Iterator[Range]:
        """What ends before the offset and does not stay, in as few ranges as it takes."""
        begun = done = 0
        while self._passing and self._passing[0][0] <= offset:
            end, start = heapq.heappop(self._passing)
            if self._some_stay(start, end) or not self._work.is_done(self._asked[start]):
                continue
            del self._asked[start]
            if start - done >= ALIGNMENT or self._some_stay(done, start):
                yield begun, done
                begun = start
            done = end
        yield begun, done

    def _some_stay(self, start: int, end: int) -> bool:
        first = bisect_left(self._kept, start)
        return first < len(self._kept) and self._kept[first] < end

    def _check_memory(self, needed: int) -> None:
        left = room(self.path.parent)
        if needed > left.free:
            raise ArenaFull(f"{mib(needed)} more for a restore; {left}: {left.more}")

    def _give_up(self, error: CheckpointsError) -> None:
        """The memory goes now, when the last lane has ended: the error's traceback holds on to
        us."""
        self._end(error)
        self._pool.shutdown(wait=True)
        with self._lock:
            self._file.close()
            self._buffers.clear()

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

    # -- lanes ------------------------------------------------------------------------------------

    def _lane(self, number: int) -> None:
        source, work = self._sources[number], self._work
        request = work.take(number)
        if request is None:
            return
        buffer = self._buffer(source.most)
        reader = self._idle(number)
        may_have_ended = reader is not None
        try:
            reader = reader or self._opened(number)
            while request is not None:
                try:
                    self._bring_all(request, number, reader, memoryview(buffer))
                except RestoreFailed:
                    if not may_have_ended or self._failed is not None:
                        raise
                    # Whoever holds something ends connections that have been idle for long.
                    self._drop(reader)
                    reader = None
                    reader = self._opened(number)
                    self._bring_all(request, number, reader, memoryview(buffer))
                may_have_ended = False
                work.done(request)
                request = work.take(number)
            self._leave(number, reader)
            reader = None
        except RestoreFailed as error:
            work.lost(number, error)
        except CheckpointsError as error:
            work.failed(error)
        except OSError as error:
            work.failed(ArenaFull(f"{self.path}: {error.strerror}"))
        except Exception as error:
            work.failed(RestoreFailed(f"{source.name}: {type(error).__name__}: {error}"))
        finally:
            with self._lock:
                self._buffers.append(buffer)
            if reader is not None:
                self._drop(reader)

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

    def _drop(self, reader: Reader) -> None:
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

    def _buffer(self, most: int) -> bytearray:
        """One that was used before is warm."""
        with self._lock:
            fitting = [buffer for buffer in self._buffers if len(buffer) == most]
            if not fitting:
                return bytearray(most)
            self._buffers.remove(fitting[0])
            return fitting[0]

    def _bring_all(self, request: Request, number: int, reader: Reader, buffer: memoryview) -> None:
        for run in cells.runs(request.cells, number, self._sources[number].most):
            self._bring(run, number, reader, buffer)

    def _bring(self, run: Sequence[Cell], number: int, reader: Reader, buffer: memoryview) -> None:
        """Cells that are neighbours in the source."""
        first, last = run[0].place(number), run[-1].place(number)
        length = last.offset + run[-1].length - first.offset
        if length > len(buffer):
            [cell] = run
            self._bring_long(cell, number, reader, buffer)
            return
        data = buffer[:length]
        # A second look tells what was damaged on the way from what lies damaged in the source.
        for damaged_before in (False, True):
            reader.read(first.file, first.offset, data)
            damaged = next((c for c in run if not _matches(c, number, first.offset, data)), None)
            if damaged is None:
                break
            if damaged_before:
                raise self._damaged(damaged, number)
        self._write(run, number, first.offset, data)

    def _write(self, run: Sequence[Cell], number: int, begun: int, data: memoryview) -> None:
        """Cells that are neighbours in the file as well go at once."""
        pieces: list[tuple[int, int, int]] = []
        for cell in run:
            place = cell.place(number).offset
            if pieces:
                target, at, length = pieces[-1]
                gap = cell.start - target - length
                if place - cell.start == at - target and gap < ALIGNMENT:
                    pieces[-1] = target, at, cell.end - target
                    continue
            pieces.append((cell.start, place, cell.length))
        for target, at, length in pieces:
            self._put(data[at - begun :][:length], target)

    def _bring_long(self, cell: Cell, number: int, reader: Reader, buffer: memoryview) -> None:
        """Longer than the buffer: it counts once the last byte has come and all of it matches."""
        place = cell.place(number)
        for _ in range(2):
            whole = xxhash.xxh3_64()
            for skipped in range(0, cell.length, len(buffer)):
                data = buffer[: min(len(buffer), cell.length - skipped)]
                reader.read(place.file, place.offset + skipped, data)
                whole.update(data)
                self._put(data, cell.start + skipped)
            if whole.hexdigest() == cell.checksum:
                return
        raise self._damaged(cell, number)

    def _put(self, data: memoryview, offset: int) -> None:
        while data:
            count = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[count:], offset + count
            stages.reached(Stage.FETCH_WROTE)

    def _damaged(self, cell: Cell, number: int) -> RestoreFailed:
        place = cell.place(number)
        return RestoreFailed(
            f"{self._sources[number].name}/{place.file}: {cell.fqn} does not match its checksum"
        )


def _matches(cell: Cell, number: int, begun: int, data: memoryview) -> bool:
    if not cell.checksum:
        return True
    start = cell.place(number).offset - begun
    return xxhash.xxh3_64_hexdigest(data[start : start + cell.length]) == cell.checksum
