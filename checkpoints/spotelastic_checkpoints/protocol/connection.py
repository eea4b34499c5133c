"""Sends requests to a checkpoint daemon over a Unix socket and receives its replies and events."""

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from spotelastic_checkpoints import framing, messages
from spotelastic_checkpoints.decoders import from_msgpack
from spotelastic_checkpoints.errors import BY_NAME, CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.protocol_version import PROTOCOL, ProtocolVersion

T = TypeVar("T")


class Connection:
    """One connection to a daemon; not thread-safe. It is closed after a time-out or an error."""

    def __init__(
        self, sock: socket.socket, name: str, *, protocol: ProtocolVersion = PROTOCOL
    ) -> None:
        self._socket = sock
        self._name = name
        self._greeting = framing.frame(0, messages.Greeting(protocol))
        """Sent with the first request."""
        self._last_id = 0
        self._replies: dict[int, tuple[str, msgspec.Raw]] = {}
        self._events: deque[messages.DaemonEvent] = deque()

    @classmethod
    def unix(cls, path: str, timeout: float) -> "Connection":
        """Connect to the socket at `path`. Raises `DaemonUnavailable`."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        try:
            sock.connect(path)
        except OSError as error:
            sock.close()
            raise DaemonUnavailable(
                f"no checkpoint daemon answers at {path}: {error.strerror or error}"
            ) from error
        return cls(sock, path)

    def send(self, request: object) -> int:
        """Send a request and return its id, for `receive`. Raises `DaemonUnavailable`."""
        self._last_id += 1
        try:
            greeting, self._greeting = self._greeting, b""
            self._socket.sendall(greeting + framing.frame(self._last_id, request))
        except OSError as error:
            raise self._broken(error) from error
        return self._last_id

    def receive(self, ident: int, kind: type[T], timeout: float | None) -> T:
        """Return the answer to the request with this id.

        `timeout` is in seconds; None waits for ever.

        Raises `TimeoutError` when there is no answer yet, in which case `receive` can be called
        again, or the error that the daemon answered with.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while ident not in self._replies:
            self._take(deadline)
        error, result = self._replies.pop(ident)
        if error:
            name, _, message = error.partition(": ")
            raise BY_NAME.get(name, CheckpointsError)(message)
        return from_msgpack(result, kind)

    def call(self, request: object, kind: type[T], timeout: float) -> T:
        """Send a request and return the answer.

        Raises `DaemonUnavailable` after `timeout` seconds.
        """
        ident = self.send(request)
        try:
            return self.receive(ident, kind, timeout)
        except TimeoutError:
            self.close()
            raise DaemonUnavailable(
                f"the checkpoint daemon at {self._name} did not answer "
                f"{type(request).__name__} within {timeout:g} s"
            ) from None

    def events(self, sink: Callable[[messages.DaemonEvent], None]) -> None:
        """Call `sink` with each event until the connection ends with `DaemonUnavailable`."""
        while True:
            while self._events:
                sink(self._events.popleft())
            self._take(None)

    def close(self) -> None:
        """Close the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def _take(self, deadline: float | None) -> None:
        header = self._read(framing.FRAME.size, deadline, partial=False)
        (length,) = framing.FRAME.unpack(header)
        # A frame that has begun is read to its end: after half of one the next could not be found.
        body = self._read(length, None, partial=True)
        ident, error, result = framing.decode_reply(body)
        if ident:
            self._replies[ident] = error, result
        else:
            self._events.append(messages.decode_event(result))

    def _read(self, length: int, deadline: float | None, *, partial: bool) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            wait = None if deadline is None or parts or partial else deadline - time.monotonic()
            if wait is not None and wait <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(wait)
                part = self._socket.recv(min(length - len(parts), 1 << 20))
            except TimeoutError:
                raise
            except OSError as error:
                raise self._broken(error) from error
            if not part:
                raise self._broken(None)
            parts += part
        return bytes(parts)

    def _broken(self, error: OSError | None) -> DaemonUnavailable:
        self.close()
        reason = f": {error.strerror or error}" if error else ""
        return DaemonUnavailable(f"lost the checkpoint daemon at {self._name}{reason}")
