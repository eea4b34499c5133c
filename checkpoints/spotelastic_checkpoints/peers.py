"""Daemon to daemon: sealed slots over TCP, for nodes that restore from another's memory.

Both sides prove that they know the cluster's token before anything else is said: the server sends
a nonce, the client its own nonce and an HMAC over both, the server an HMAC over both.
"""

import hashlib
import hmac
import os
import socket
import threading
import time
from contextlib import suppress
from typing import TypeVar

import msgspec
import xxhash

from spotelastic_checkpoints import wire
from spotelastic_checkpoints.arena import HEADER, Arena, Slot
from spotelastic_checkpoints.errors import CheckpointsError, RestoreFailed
from spotelastic_checkpoints.wire import Inventory, Read, Shelf

T = TypeVar("T")

NONCE = 16
MAC = 32
ANSWER_WITHIN = 10.0
"""Seconds without a byte after which a peer counts as gone."""
IDLE_FOR = 300.0
"""Seconds between two requests after which a connection is ended."""
LONGEST_REQUEST = 1 << 16
RANGE = 4 << 20
"""Bytes per request,"""
RANGE_WITHIN = 60.0
"""and seconds that they may take."""


def _proof(token: str, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.new(token.encode(), side + first + second, hashlib.sha256).digest()


class PeerServer:
    """Serves the slots of one arena, each connection in a thread: the kernel sends the pages of
    shared memory themselves."""

    def __init__(self, arena: Arena, token: str, host: str, port: int) -> None:
        self._arena = arena
        self._token = token
        self._listener = socket.create_server((host, port), backlog=64)
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError, msgspec.MsgspecError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(ANSWER_WITHIN)
            if not self._prove(connection):
                return
            while True:
                connection.settimeout(IDLE_FOR)
                (length,) = wire.FRAME.unpack(_exactly(connection, wire.FRAME.size))
                if length > LONGEST_REQUEST:
                    return
                ident, request = wire.decode_peer_request(bytes(_exactly(connection, length)))
                connection.settimeout(ANSWER_WITHIN)
                self._answer(connection, ident, request)

    def _prove(self, connection: socket.socket) -> bool:
        mine = os.urandom(NONCE)
        connection.sendall(mine)
        theirs = bytes(_exactly(connection, NONCE))
        proof = bytes(_exactly(connection, MAC))
        if not hmac.compare_digest(proof, _proof(self._token, b"client", mine, theirs)):
            return False
        connection.sendall(_proof(self._token, b"server", theirs, mine))
        return True

    def _answer(self, connection: socket.socket, ident: int, request: wire.PeerRequest) -> None:
        try:
            if isinstance(request, Inventory):
                answer = wire.frame(ident, "", self._inventory(request))
            else:
                answer = wire.frame(ident, "", self._send(connection, ident, request))
        except CheckpointsError as error:
            answer = wire.frame(ident, str(error), None)
        connection.sendall(answer)

    def _send(self, connection: socket.socket, ident: int, request: Read) -> str:
        """The bytes; returns their checksum."""
        slot = self._slot(request)
        with slot.path.open("rb", buffering=0) as file:
            connection.sendall(wire.frame(ident, "", request.length))
            if request.length:
                connection.sendfile(file, HEADER + request.offset, request.length)
        return self._checksum(slot, request)

    def _checksum(self, slot: Slot, request: Read) -> str:
        checksum = xxhash.xxh3_64_hexdigest(slot.data[request.offset :][: request.length])
        # Only now is it sure that the bytes were those of the save.
        if slot.generation != request.generation:
            raise _overwritten(request)
        return checksum

    def _inventory(self, request: Inventory) -> tuple[Shelf, ...]:
        wanted = (request.incarnation, request.step, request.layout)
        return tuple(
            Shelf(
                header.rank, slot.generation, header.world_size, header.shared, slot.items(header)
            )
            for slot, header in self._arena.sealed()
            if (header.incarnation, header.step, header.layout) == wanted
        )

    def _slot(self, request: Read) -> Slot:
        for slot, header in self._arena.sealed():
            if header.rank == request.rank and slot.generation == request.generation:
                if not 0 <= request.offset <= request.offset + request.length <= len(slot.data):
                    break
                return slot
        raise _overwritten(request)


def _overwritten(request: Read) -> RestoreFailed:
    return RestoreFailed(f"the slot of rank {request.rank} has been overwritten")


class Peer:
    """A connection to another node's daemon. One thread; every wait has a deadline."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), ANSWER_WITHIN)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._prove(token)
        except (OSError, ValueError) as error:
            raise RestoreFailed(f"no checkpoint daemon answers at {address}: {error}") from error

    def inventory(self, request: Inventory) -> tuple[Shelf, ...]:
        return self._call(request, tuple[Shelf, ...])

    def read(self, request: Read, target: memoryview) -> None:
        """Fills `target`, which is as long as the request asks for; verified."""
        deadline = time.monotonic() + RANGE_WITHIN
        if self._call(request, int) != len(target):
            raise RestoreFailed(f"{self.address}: another length than was asked for")
        try:
            _fill(self._socket, target, deadline)
        except OSError as broken:
            raise self._lost(broken) from None
        if self._receive(str) != xxhash.xxh3_64_hexdigest(target):
            raise RestoreFailed(f"{self.address}: what came is not what was sent")

    def abort(self) -> None:
        """Ends what another thread waits for, too."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def _prove(self, token: str) -> None:
        theirs = bytes(_exactly(self._socket, NONCE))
        mine = os.urandom(NONCE)
        self._socket.sendall(mine + _proof(token, b"client", theirs, mine))
        try:
            proof = bytes(_exactly(self._socket, MAC))
        except ConnectionError as error:
            raise ConnectionError(f"{error}; is the token the same?") from error
        if not hmac.compare_digest(proof, _proof(token, b"server", mine, theirs)):
            raise ConnectionError("it does not know this cluster's token")

    def _call(self, request: object, kind: type[T]) -> T:
        try:
            self._socket.sendall(wire.frame(0, request))
        except OSError as broken:
            raise self._lost(broken) from None
        return self._receive(kind)

    def _receive(self, kind: type[T]) -> T:
        try:
            (length,) = wire.FRAME.unpack(_exactly(self._socket, wire.FRAME.size))
            _, error, result = wire.decode_reply(bytes(_exactly(self._socket, length)))
        except OSError as broken:
            raise self._lost(broken) from None
        if error:
            raise RestoreFailed(f"{self.address}: {error}")
        return wire.decode_result(result, kind)

    def _lost(self, error: OSError) -> RestoreFailed:
        return RestoreFailed(f"lost the checkpoint daemon at {self.address}: {error}")


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    _fill(connection, memoryview(data))
    return data


def _fill(connection: socket.socket, target: memoryview, deadline: float | None = None) -> None:
    while target:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError("it sends too slowly")
        count = connection.recv_into(target)
        if not count:
            raise ConnectionError("the connection was closed")
        target = target[count:]
