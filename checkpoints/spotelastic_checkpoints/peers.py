"""Daemon to daemon: sealed slots over TCP, for nodes that restore from another's memory.

Both sides prove that they know the cluster's token before anything else is said: the server sends
a nonce, the client its own nonce and an HMAC over both, the server an HMAC over both.
"""

import asyncio
import hashlib
import hmac
import os
import socket
import time
from typing import TypeVar

import msgspec

from spotelastic_checkpoints import wire
from spotelastic_checkpoints.arena import Arena
from spotelastic_checkpoints.errors import CheckpointsError, RestoreFailed
from spotelastic_checkpoints.pipeline import checksummed
from spotelastic_checkpoints.wire import Inventory, Read, Shelf

T = TypeVar("T")

NONCE = 16
MAC = 32
ANSWER_WITHIN = 10.0
"""Seconds for one answer of a peer."""
RANGE = 8 << 20
"""Bytes per request."""


def _proof(token: str, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.new(token.encode(), side + first + second, hashlib.sha256).digest()


class PeerServer:
    """Serves the slots of one arena; `inventory` and `read` run where they are awaited."""

    def __init__(self, arena: Arena, token: str) -> None:
        self._arena = arena
        self._token = token

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                if not await self._prove(reader, writer):
                    return
            while True:
                (length,) = wire.FRAME.unpack(await reader.readexactly(wire.FRAME.size))
                if length > 1 << 16:
                    return
                ident, request = wire.decode_peer_request(await reader.readexactly(length))
                writer.write(await self._answer(ident, request))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError):
            pass
        finally:
            writer.close()

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        mine = os.urandom(NONCE)
        writer.write(mine)
        theirs = await reader.readexactly(NONCE)
        proof = await reader.readexactly(MAC)
        if not hmac.compare_digest(proof, _proof(self._token, b"client", mine, theirs)):
            return False
        writer.write(_proof(self._token, b"server", theirs, mine))
        return True

    async def _answer(self, ident: int, request: wire.PeerRequest) -> bytes:
        try:
            if isinstance(request, Inventory):
                result: object = await asyncio.to_thread(self._inventory, request)
            else:
                result = self._read(request)
        except CheckpointsError as error:
            return wire.frame(ident, f"{type(error).__name__}: {error}", None)
        return wire.frame(ident, "", result)

    def _inventory(self, request: Inventory) -> tuple[Shelf, ...]:
        wanted = (request.incarnation, request.step, request.layout)
        return tuple(
            Shelf(
                header.rank,
                slot.generation,
                header.world_size,
                header.shared,
                checksummed(slot, slot.items(header)),
            )
            for slot, header in self._arena.sealed()
            if (header.incarnation, header.step, header.layout) == wanted
        )

    def _read(self, request: Read) -> bytes:
        for slot, header in self._arena.sealed():
            if header.rank == request.rank and slot.generation == request.generation:
                data = bytes(slot.data[request.offset : request.offset + request.length])
                if slot.generation == request.generation and len(data) == request.length:
                    return data
        raise RestoreFailed(f"the slot of rank {request.rank} has been overwritten")


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

    def read(self, request: Read) -> bytes:
        return self._call(request, bytes)

    def close(self) -> None:
        self._socket.close()

    def _prove(self, token: str) -> None:
        theirs = bytes(self._exactly(NONCE))
        mine = os.urandom(NONCE)
        self._socket.sendall(mine + _proof(token, b"client", theirs, mine))
        proof = bytes(self._exactly(MAC))
        if not hmac.compare_digest(proof, _proof(token, b"server", mine, theirs)):
            raise ConnectionError("it does not know this cluster's token")

    def _call(self, request: object, kind: type[T]) -> T:
        try:
            self._socket.sendall(wire.frame(0, request))
            (length,) = wire.FRAME.unpack(self._exactly(wire.FRAME.size))
            _, error, result = wire.decode_reply(bytes(self._exactly(length)))
        except OSError as broken:
            raise RestoreFailed(f"lost the checkpoint daemon at {self.address}: {broken}") from None
        if error:
            raise RestoreFailed(f"{self.address}: {error.partition(': ')[2]}")
        return wire.decode_result(result, kind)

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view, deadline = memoryview(data), time.monotonic() + ANSWER_WITHIN
        while view:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError("the connection was closed; is the token the same?")
            view = view[count:]
        return data
