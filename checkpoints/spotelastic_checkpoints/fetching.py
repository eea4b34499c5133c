"""Copies cells of a checkpoint into one file of shared memory, from whoever has them.

Each source has lanes (connections), each lane takes the next request that its source can serve.
So a fast holder sends more than a slow one, what a lost one had begun goes to the next, and what a
slow one sits on is asked of another, too. Bytes go through a small buffer that stays warm: writing
to fresh pages of a mapping would cost a fault for each.

Must never happen: a rank uses what was not verified. A range counts as fetched only when all its
cells have come and match.
"""

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import xxhash

from spotelastic_checkpoints import cells, stages
from spotelastic_checkpoints.cells import Cell, Placed, Request
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError, RestoreFailed
from spotelastic_checkpoints.layout import ALIGNMENT
from spotelastic_checkpoints.room import mib, room
from spotelastic_checkpoints.stages import Stage

MOST_LANES = 16
LATE = 2.0
"""Seconds after which a request is made of another source as well."""


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


class Work:
    """The requests of one batch, and who is at them. `clock` is the time in seconds."""

    def __init__(
        self, requests: Sequence[Request], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._changed = threading.Condition()
        self._clock = clock
        self._queues: dict[int, deque[Request]] = defaultdict(deque)
        """By source; what is under way or done already is passed over."""
        self._begun: dict[Request, float] = {}
        """When a request under way was last given to somebody,"""
        self._given: dict[Request, set[int]] = {request: set() for request in requests}
        """and to whom, of those that have not done it."""
        self._lost: dict[int, str] = {}
        """Sources that are not asked any more, and why."""
        self._error: CheckpointsError | None = None
        for request in requests:
            self._queue(request)

    def take(self, source: int) -> Request | None:
        """The next for this source; None when there will be no more. Waits while what others have
        begun may yet have to be asked of this one."""
        with self._changed:
            while self._error is None and source not in self._lost:
                queue = self._queues[source]
                while queue:
                    request = queue.popleft()
                    if request in self._given and request not in self._begun:
                        return self._give(request, source)
                others = [
                    request
                    for request in self._begun
                    if source in request.sources and source not in self._given[request]
                ]
                if not others:
                    return None
                oldest = min(others, key=lambda request: self._begun[request])
                left = self._begun[oldest] + LATE - self._clock()
                if left <= 0:
                    return self._give(oldest, source)
                self._changed.wait(left)
            return None

    def done(self, request: Request) -> None:
        with self._changed:
            self._begun.pop(request, None)
            self._given.pop(request, None)
            self._changed.notify_all()

    def lost(self, source: int, reason: CheckpointsError) -> None:
        """What only this source was at is for others; an error when there are none."""
        with self._changed:
            self._lost[source] = str(reason)
            for request, given in list(self._given.items()):
                given.discard(source)
                if not request.sources - self._lost.keys():
                    reasons = "; ".join(self._lost[s] for s in sorted(request.sources))
                    self._error = RestoreFailed(reasons)
                elif request in self._begun and not given:
                    del self._begun[request]
                    self._queue(request)
            self._changed.notify_all()

    def failed(self, error: CheckpointsError) -> None:
        """Of everything: no other source can help."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait(self) -> None:
        """Until all is done; raises the error that ended it."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._given)
            if self._error is not None:
                raise self._error

    def _queue(self, request: Request) -> None:
        for source in request.sources:
            self._queues[source].append(request)

    def _give(self, request: Request, source: int) -> Request:
        self._begun[request] = self._clock()
        self._given[request].add(source)
        return request


class Fetcher:
    """One checkpoint's way into one file; used by all local ranks, each from its own thread."""

    def __init__(self, path: Path, items: Sequence[Placed], sources: Sequence[Source]) -> None:
        self.path = path
        self._items = items
        self._sources = sources
        self._asked: dict[int, Future[None]] = {}
        """Cells that were asked for, by their start, and when they are there."""
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._failed: BaseException | None = None
        self._buffers: list[bytearray] = []
        path.touch(0o600)
        self._file = path.open("rb+", buffering=0)
        # Pages come as they are written: what nobody needs takes no memory.
        last = items[-1].item if items else None
        self._file.truncate(last.offset + last.length if last else 0)
        stages.reached(Stage.FETCH_OPENED)

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Returns when these ranges are there and verified. Raises `RestoreFailed`, `ArenaFull`;
        so does every later call then."""
        wanted = list(cells.touched(self._items, ranges))
        batch: Future[None] = Future()
        with self._lock:
            new = [cell for cell in wanted if cell.start not in self._asked]
            self._asked.update(dict.fromkeys((cell.start for cell in new), batch))
            waiting = {self._asked[cell.start] for cell in wanted} - {batch}
        if new:
            self._fill(new, batch)
        for other in waiting:
            other.result()

    def remove(self) -> None:
        """The file goes at once, its memory with the last who has it open."""
        self.path.unlink(missing_ok=True)

    def _fill(self, new: Sequence[Cell], batch: "Future[None]") -> None:
        """One batch at a time: each takes all the lanes there are."""
        try:
            with self._turn:
                self._bring_all(new)
        except BaseException as error:
            batch.set_exception(error)
            raise
        batch.set_result(None)

    def _bring_all(self, new: Sequence[Cell]) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            self._check_memory(sum(cell.length for cell in new))
            self._run(new)
            stages.reached(Stage.FETCH_VERIFIED)
        except BaseException as error:
            self._failed = error
            self._give_up()
            raise

    def _give_up(self) -> None:
        """No lane is left. The memory goes now: the error's traceback holds on to us."""
        self.remove()
        self._file.close()
        self._buffers.clear()

    def _check_memory(self, needed: int) -> None:
        left = room(self.path.parent)
        if needed > left.free:
            raise ArenaFull(f"{mib(needed)} more for a restore; {left}: {left.more}")

    def _run(self, new: Sequence[Cell]) -> None:
        most = min(source.most for source in self._sources)
        requests = cells.requests(new, most)
        work = Work(requests)
        asked = sorted(frozenset().union(*(request.sources for request in requests)))
        lanes = [
            number
            for lane in range(max(self._sources[number].lanes for number in asked))
            for number in asked
            if lane < self._sources[number].lanes
        ]
        readers: list[Reader] = []
        with ThreadPoolExecutor(min(len(lanes), MOST_LANES)) as pool:
            for number in lanes:
                pool.submit(self._lane, number, work, readers)
            try:
                work.wait()
            finally:
                # Those that are still at what another has done meanwhile.
                for reader in readers:
                    reader.abort()

    def _lane(self, number: int, work: Work, readers: list[Reader]) -> None:
        request = work.take(number)
        if request is None:
            return
        source, buffer = self._sources[number], self._buffer(number)
        reader: Reader | None = None
        try:
            reader = source.open()
            readers.append(reader)
            while request is not None:
                for run in cells.runs(request.cells, number, source.most):
                    self._bring(run, number, reader, memoryview(buffer))
                work.done(request)
                request = work.take(number)
        except RestoreFailed as error:
            work.lost(number, error)
        except CheckpointsError as error:
            work.failed(error)
        except OSError as error:
            work.failed(ArenaFull(f"{self.path}: {error.strerror}"))
        except Exception as error:
            work.failed(RestoreFailed(f"{source.name}: {type(error).__name__}: {error}"))
        finally:
            if reader is not None:
                reader.close()
            with self._lock:
                self._buffers.append(buffer)

    def _buffer(self, number: int) -> bytearray:
        """One that was used before is warm."""
        most = self._sources[number].most
        with self._lock:
            fitting = [buffer for buffer in self._buffers if len(buffer) == most]
            if not fitting:
                return bytearray(most)
            self._buffers.remove(fitting[0])
            return fitting[0]

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
