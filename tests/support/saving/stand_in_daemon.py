"""Answers workers as a test says, in place of a checkpoint daemon: a real socket, but no slots."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spotelastic_checkpoints import framing, messages
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.protocol.worker_client import WorkerClient

UNANSWERED = object()
"""In place of an answer: the worker gets none."""

Answer = Callable[[messages.Request], object]


class StandInDaemon:
    """Serves the socket until it is closed. What `answer` returns or raises is sent."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        self.socket, self._page = folder / "daemon.sock", folder / "page"
        self._answer = answer
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def worker(self) -> WorkerClient:
        return WorkerClient(str(self.socket), round="r1", rank=0, local_rank=0)

    def hang_up(self) -> None:
        """Ends all connections, and goes on to listen, as the next daemon does."""
        for connection in self._connections:
            _shut(connection)

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.hang_up()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, suppress(OSError, EOFError):
            messages.decode_greeting(_body(stream.read))
            while True:
                ident, request = messages.decode_request(_body(stream.read))
                answer, error = self._answered(request)
                if answer is not UNANSWERED:
                    connection.sendall(framing.frame(ident, error, answer))

    def _answered(self, request: messages.Request) -> tuple[object, str]:
        try:
            answer = self._answer(request)
        except CheckpointsError as error:
            return None, f"{type(error).__name__}: {error}"
        # Where a test has nothing to say about it, a worker is attached, and has no slots to map.
        if answer is None and isinstance(request, messages.Attach):
            return str(self._page), ""
        if answer is None and isinstance(request, messages.AwaitSlots):
            return (), ""
        return answer, ""


@contextmanager
def standing_in(folder: Path, answer: Answer) -> Iterator[StandInDaemon]:
    daemon = StandInDaemon(folder, answer)
    try:
        yield daemon
    finally:
        daemon.close()


def _body(read: Callable[[int], bytes]) -> bytes:
    return _whole(read, framing.FRAME.unpack(_whole(read, framing.FRAME.size))[0])


def _whole(read: Callable[[int], bytes], size: int) -> bytes:
    """Read this many bytes. A worker may hang up at any of them: EOFError."""
    if len(data := read(size)) < size:
        raise EOFError
    return data


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
