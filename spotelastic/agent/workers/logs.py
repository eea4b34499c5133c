"""Collects the output of workers through pipes, and writes it to one file per round and rank.

A worker's two streams share a pipe, and so keep their order, unless they go different ways
(`output.py`). Lines are also handed to a sink: the terminal with a rank prefix, or the cloud's log
service. Files hold each byte as it was written; a later round never deletes them.

Memory is bounded: a line longer than `LONGEST` reaches the sink in pieces.
"""

import contextlib
import logging
import math
import os
import re
import selectors
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spotelastic.agent.workers.output import (
    STREAMS,
    LineSink,
    Output,
    Route,
    Stream,
    Unfinished,
)
from spotelastic.clock import steady

logger = logging.getLogger(__name__)

LONGEST = 65536
"""Bytes of a line above which it is passed on in pieces."""
STUCK_AFTER = 5.0
"""Seconds without a byte after which the sink counts as stuck."""
SHOWN_AFTER = 0.1
"""Seconds without a byte after which a line without an end is shown as it is."""
_CHUNK = 65536
_END = re.compile(rb"\r?\n|\r")


@dataclass
class _Pipe:
    rank: int
    local_rank: int
    file: BinaryIO | None
    sink: LineSink | None
    needles: tuple[str, ...] = ()
    matches: BinaryIO | None = None
    """Receives the lines that contain one of `needles`."""
    rest: bytes = b""
    """The line that has no end yet."""
    told: int = 0
    """So many bytes of it are shown already."""
    over: bool = False
    """Whether `rest` replaces the last line, because it follows a carriage return."""
    heard: float = 0.0
    """Steady time of the last bytes."""

    def take(self, data: bytes) -> None:
        self.heard = steady()
        self.file = self._write(self.file, data)
        text, begin = self.rest + data, 0
        for end in _END.finditer(text):
            self._replace_update()
            self.over = end.group() == b"\r"
            self._tell(text[begin : end.start()], update=self.over)
            begin, self.told = end.end(), 0
        while len(text) - begin > LONGEST:
            cut = _boundary(text, begin + LONGEST)
            self._tell(text[begin:cut])
            begin, self.told = cut, 0
        self.rest = text[begin:]

    def wait_for(self, now: float) -> float:
        """Return the seconds until an unfinished line is shown as it is."""
        return self.heard + SHOWN_AFTER - now if len(self.rest) > self.told else math.inf

    def show_rest(self) -> None:
        end = _whole(self.rest)
        new, self.told = self.rest[self.told : end], len(self.rest)
        if self.sink is None or not new:
            return
        if self.over:
            self._show(self.sink, f"{self.rest[:end].decode(errors='replace')}\r")
        else:
            self.told = end
            self._show(self.sink, Unfinished(new.decode(errors="replace")))

    def _replace_update(self) -> None:
        if self.over:
            self.told = 0

    def end(self) -> None:
        if self.rest:
            self._replace_update()
            self._tell(self.rest)
        for file in (self.file, self.matches):
            if file is not None:
                _close(file)

    def _tell(self, line: bytes, *, update: bool = False) -> None:
        if (self.sink is None and self.matches is None) or (update and not line):
            return
        text = line.decode(errors="replace")
        if self.sink is not None:
            new = line[self.told :].decode(errors="replace")
            self._show(self.sink, f"{new}\r" if update else new)
        if self.matches is not None and any(needle in text for needle in self.needles):
            self.matches = self._write(self.matches, f"[{self.rank}] {text}\n".encode())

    def _show(self, sink: LineSink, text: str) -> None:
        """Pass a line on.

        Reading goes on whatever the sink does, because the worker would block otherwise.
        """
        try:
            sink(self.rank, self.local_rank, text)
        except Exception as error:
            self.sink = None
            logger.warning(
                f"no more output of rank {self.rank} is shown: {type(error).__name__}: {error}"
            )

    def _write(self, file: BinaryIO | None, data: bytes) -> BinaryIO | None:
        """Write to the file.

        Returns None once the file takes no more: reading goes on, because the worker would block
        otherwise.
        """
        if file is None:
            return None
        try:
            file.write(data)
        except OSError as error:
            logger.warning(
                f"{file.name}: {error.strerror}: no more output of rank {self.rank} is kept"
            )
            _close(file)
            return None
        return file


def _boundary(text: bytes, at: int) -> int:
    """Return the last beginning of a UTF-8 character at or shortly before `at`."""
    for cut in range(at, at - 4, -1):
        if text[cut] & 0xC0 != 0x80:
            return cut
    return at


def _whole(text: bytes) -> int:
    """Return the length without a UTF-8 character at the end of which bytes are still to come."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(text) - back if length > back else len(text)
    return len(text)


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # what a network file system could not write
        file.close()


class Logs:
    """Reads the pipes of all workers. `open` returns the ends that a worker writes to.

    `errors` receives the lines of a stderr that is shown separately (teed); `sink` receives all
    others.
    """

    def __init__(
        self,
        sink: LineSink,
        errors: LineSink | None = None,
        output: Output | None = None,
        stuck_after: float = STUCK_AFTER,
    ) -> None:
        self._stuck_after = stuck_after
        self._sink = sink
        self._errors = errors or sink
        self._output = output or Output()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._new: list[tuple[int, _Pipe]] = []
        self._pipes: dict[int, list[_Pipe]] = {}
        """Those of the last worker of each local rank."""
        self._lock = threading.Lock()
        self._closing = False
        self._asked = False
        self._caught_up = threading.Event()
        self._taken = 0
        """Bytes read so far."""
        self._thread = threading.Thread(target=self._run, name="worker-output", daemon=True)
        self._thread.start()

    def open(self, folder: Path, rank: int, local_rank: int) -> tuple[int, ...]:
        """Return descriptors to pass to the worker: one for both streams, or stdout's and stderr's.

        The caller closes its own copies after the fork.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._pipes[local_rank] = []
        routes = [self._output.route(rank, local_rank, stream) for stream in STREAMS]
        streams = STREAMS[:1] if routes[0] == routes[1] else STREAMS
        return tuple(
            self._pipe(folder, rank, local_rank, stream, route)
            for stream, route in zip(streams, routes, strict=False)
        )

    def path(self, folder: Path, rank: int, local_rank: int) -> Path:
        """Return the file with what the worker wrote to stderr."""
        return folder / self._output.route(rank, local_rank, "stderr").file

    def has_become(self, local_rank: int, rank: int) -> None:
        """Note that a worker goes on under another rank. Its files keep their names."""
        for pipe in self._pipes.get(local_rank, ()):
            pipe.rank = rank

    def catch_up(self, within: float = 1.0) -> None:
        """Return once all that workers had written before is in their files."""
        self._caught_up.clear()
        self._asked = True
        os.write(self._wake_write, b".")
        self._caught_up.wait(within)

    def close(self) -> None:
        """Read what is left and stop. Logs a warning if not all of it could be shown."""
        self._closing = True
        os.write(self._wake_write, b".")
        taken = -1
        while self._thread.is_alive() and taken != self._taken:
            taken = self._taken
            self._thread.join(timeout=self._stuck_after)
        if self._thread.is_alive():  # it still uses what is closed below
            logger.warning(
                "the workers' last output is lost: nobody reads this command's output any more"
            )
            return
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _pipe(self, folder: Path, rank: int, local_rank: int, stream: Stream, route: Route) -> int:
        sink = self._errors if stream == "stderr" and route.apart else self._sink
        matches = folder / f"filtered_{stream}.log" if route.needles else None
        pipe = _Pipe(
            rank,
            local_rank,
            (folder / route.file).open("ab", buffering=0),
            sink if route.shown else None,
            route.needles,
            matches.open("ab", buffering=0) if matches is not None else None,
        )
        self._pipes[local_rank].append(pipe)
        read, write = os.pipe2(os.O_CLOEXEC)
        with self._lock:
            self._new.append((read, pipe))
        os.write(self._wake_write, b".")
        return write

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(self._show_rests()):
                if key.fd == self._wake_read:
                    os.read(self._wake_read, _CHUNK)
                    self._adopt()
                else:
                    self._pump(key.fd, key.data)
            if self._asked and not self._selector.select(0):
                self._asked = False
                self._caught_up.set()
            if self._closing:
                self._drain()
                return

    def _show_rests(self) -> float | None:
        """Show lines without an end. Returns the seconds until the next may be due."""
        now, soonest = steady(), math.inf
        for key in self._selector.get_map().values():
            if isinstance(key.data, _Pipe):
                left = key.data.wait_for(now)
                if left <= 0:
                    key.data.show_rest()
                else:
                    soonest = min(soonest, left)
        return None if soonest == math.inf else soonest

    def _adopt(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for fd, pipe in new:
            self._selector.register(fd, selectors.EVENT_READ, pipe)

    def _pump(self, fd: int, pipe: _Pipe) -> bool:
        data = os.read(fd, _CHUNK)
        if data:
            self._taken += len(data)
            pipe.take(data)
        else:
            self._drop(fd, pipe)
        return bool(data)

    def _drop(self, fd: int, pipe: _Pipe) -> None:
        self._selector.unregister(fd)
        os.close(fd)
        pipe.end()

    def _drain(self) -> None:
        """Take what is left in the pipes. A process that still writes is being killed."""
        self._adopt()
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake_read and isinstance(key.fd, int):
                os.set_blocking(key.fd, False)
                try:
                    while self._pump(key.fd, key.data):
                        pass
                except BlockingIOError:
                    self._drop(key.fd, key.data)


def last_lines(path: Path, most: int = 8192) -> str:
    """Return what is at the end of a worker's log; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def stacks(folder: Path, rank: int | str) -> Path:
    """Return the file to which a rank's worker writes the stacks of its threads on request."""
    return folder / f"rank-{rank}.stack"
