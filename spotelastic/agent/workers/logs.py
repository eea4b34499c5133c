"""Workers' output: one pipe per worker, read by one thread into a file per round and rank.

Every line is also handed to a sink (the terminal with a rank prefix, the cloud's log service).
Files are never deleted by a later round.
"""

import os
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

LineSink = Callable[[int, str], None]
"""Receives (rank, line without its end)."""

_CHUNK = 65536


@dataclass
class _Stream:
    rank: int
    file: BinaryIO
    rest: bytes = b""


class Logs:
    """Reads the pipes of all workers. `open` gives the end that a worker writes to."""

    def __init__(self, sink: LineSink) -> None:
        self._sink = sink
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._new: list[tuple[int, _Stream]] = []
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def open(self, rank: int, path: Path) -> int:
        """A descriptor to pass to the worker; the caller closes its own copy after the fork."""
        path.parent.mkdir(parents=True, exist_ok=True)
        read, write = os.pipe2(os.O_CLOEXEC)
        with self._lock:
            self._new.append((read, _Stream(rank, path.open("ab", buffering=0))))
        os.write(self._wake_write, b".")
        return write

    def close(self) -> None:
        """Read what is there, then stop."""
        self._closing = True
        os.write(self._wake_write, b".")
        self._thread.join(timeout=5)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake_read:
                    os.read(self._wake_read, _CHUNK)
                    self._adopt()
                else:
                    self._pump(key.fd, key.data)
            if self._closing:
                self._drain()
                return

    def _adopt(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for fd, stream in new:
            self._selector.register(fd, selectors.EVENT_READ, stream)

    def _pump(self, fd: int, stream: _Stream) -> bool:
        data = os.read(fd, _CHUNK)
        if not data:
            if stream.rest:
                self._sink(stream.rank, stream.rest.decode(errors="replace"))
            self._selector.unregister(fd)
            os.close(fd)
            stream.file.close()
            return False
        stream.file.write(data)
        *lines, stream.rest = (stream.rest + data).split(b"\n")
        for line in lines:
            self._sink(stream.rank, line.decode(errors="replace"))
        return True

    def _drain(self) -> None:
        """Whoever still writes is being killed; take what is already in the pipes."""
        self._adopt()
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake_read and isinstance(key.fd, int):
                os.set_blocking(key.fd, False)
                try:
                    while self._pump(key.fd, key.data):
                        pass
                except BlockingIOError:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                    key.data.file.close()
