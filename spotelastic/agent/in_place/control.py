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

from spotelastic.agent.state import events
from spotelastic.model.in_place import FromWorker, Listening, Present, SavesFirst, ToWorker

PACKET = 1 << 20
"""Most bytes of a message. The variables of a worker's environment are most of the largest."""
_PEER = struct.Struct("3i")
"""Process, user and group of the other side of a Unix socket."""
_DECODER: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
_JOIN = 5.0

ControlEvent = events.WorkerListens | events.WorkerRests | events.WorkerPresent | events.WorkerDeaf


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
                        self._read(selector, key.fileobj)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):
            worker, _ = self._listener.accept()
            told = worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(told)[1] != os.getuid():
                worker.close()
                return
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
            selector.register(worker, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, channel: object) -> None:
        assert isinstance(channel, socket.socket)
        try:
            data = channel.recv(PACKET, socket.MSG_DONTWAIT)
            message = _DECODER.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError):
            message = None
        with self._lock:
            if isinstance(message, Listening):
                self._workers[message.local_rank] = channel
            known = (rank for rank, other in self._workers.items() if other is channel)
            rank = next(known, None)
            if message is None and rank is not None:
                del self._workers[rank]
        if message is None:
            selector.unregister(channel)
            channel.close()
        if rank is None:
            return  # it has not said who it is
        match message:
            case None:
                self._post(events.WorkerDeaf(rank))
            case Listening(round_):
                self._post(events.WorkerListens(round_, rank))
            case Present(round_):
                self._post(events.WorkerPresent(round_, rank))
            case SavesFirst(round_):
                self._post(events.WorkerPresent(round_, rank, saves=True))
            case _:
                rest = (message.standing, message.broken, message.traceback)
                self._post(events.WorkerRests(message.round, rank, *rest))
