"""The agent's side of its connections to workers that can rest (`model/in_place.py`).

A worker that listens is known by its local rank. One thread accepts connections and reads.
"""

import contextlib
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from spotelastic.agent.state.events import (
    WorkerDeaf,
    WorkerListens,
    WorkerPresent,
    WorkerRests,
)
from spotelastic.model.in_place import FromWorker, Listening, Present, SavesFirst, ToWorker

PACKET = 1 << 20
"""Most bytes of a message. The variables of a worker's environment are most of the largest."""
_PEER = struct.Struct("3i")
"""Process, user and group of the other side of a Unix socket."""
_DECODER: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
_JOIN = 5.0

ControlEvent = WorkerListens | WorkerRests | WorkerPresent | WorkerDeaf


class WorkerControl:
    """Listens at `path` for workers of this user, and reports what they say."""

    def __init__(self, path: Path, post: Callable[[ControlEvent], None]) -> None:
        self.path = path
        self._post = post
        self._workers: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._stop, self._stopped = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="worker-control", daemon=True)
        self._thread.start()

    def send(self, local_rank: int, message: ToWorker) -> bool:
        """Send a message to one worker. Returns False if it is not there, or reads nothing."""
        with self._lock:
            worker = self._workers.get(local_rank)
        if worker is None:
            return False
        try:
            worker.send(msgspec.json.encode(message), socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self._stopped)
        self._thread.join(_JOIN)
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._stop, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._stop:
                        os.close(self._stop)
                        return
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    else:
                        self._read(selector, key)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):
            worker, _ = self._listener.accept()
            told = worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(told)[1] != os.getuid():
                worker.close()
                return
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
            selector.register(worker, selectors.EVENT_READ, _Worker())

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        channel, worker = key.fileobj, key.data
        assert isinstance(channel, socket.socket)
        try:
            data = channel.recv(PACKET, socket.MSG_DONTWAIT)
            message = _DECODER.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError):
            message = None
        if message is None:
            selector.unregister(channel)
            self._lost(channel, worker)
        elif isinstance(message, Listening):
            worker.local_rank = message.local_rank
            with self._lock:
                self._workers[message.local_rank] = channel
            self._post(WorkerListens(message.round, message.local_rank))
        elif worker.local_rank is None:
            return  # it has not said who it is
        elif isinstance(message, Present):
            self._post(WorkerPresent(message.round, worker.local_rank))
        elif isinstance(message, SavesFirst):
            self._post(WorkerPresent(message.round, worker.local_rank, saves=True))
        else:
            rest = (message.standing, message.broken, message.traceback)
            self._post(WorkerRests(message.round, worker.local_rank, *rest))

    def _lost(self, channel: socket.socket, worker: "_Worker") -> None:
        with self._lock:
            current = worker.local_rank is not None and (
                self._workers.get(worker.local_rank) is channel
            )
            if current and worker.local_rank is not None:
                del self._workers[worker.local_rank]
        channel.close()
        if current and worker.local_rank is not None:
            self._post(WorkerDeaf(worker.local_rank))


class _Worker:
    """What is known of the other side of one connection."""

    local_rank: int | None = None
