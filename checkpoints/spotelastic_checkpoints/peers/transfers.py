"""Sends sealed slots from one node's checkpoint daemon to another's, over TCP.

A node restores from another's memory this way. `handshake.py` authenticates both sides first.
"""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
import xxhash

from spotelastic_checkpoints import addresses, crash_points, framing
from spotelastic_checkpoints.decoders import from_msgpack
from spotelastic_checkpoints.errors import CheckpointsError, RestoreFailed
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import HEADER, Arena, Slot
from spotelastic_checkpoints.peers import handshake, messages
from spotelastic_checkpoints.peers.handshake import PeerCredentials, PeerRefused, fill
from spotelastic_checkpoints.peers.messages import (
    MOST_PIECES,
    AwaitOffer,
    Digest,
    Inventory,
    Offer,
    PeerRequest,
    Read,
    Shelf,
)
from spotelastic_checkpoints.peers.offers import Offers

T = TypeVar("T")

ANSWER_WITHIN = 10.0
"""Seconds without a byte after which the other daemon counts as gone."""
IDLE_FOR = 300.0
"""Seconds without a request after which a connection is closed."""
LONGEST_REQUEST, LONGEST_ANSWER = 1 << 16, 1 << 28
"""Bytes of the longest request and the longest answer that are accepted."""
UNPROVEN = 64
"""Connections that have not proved yet who they are. One more ends the oldest of them."""
RANGE = 4 << 20
"""Bytes asked for in one request."""
RANGE_WITHIN = 60.0
"""Seconds that the answer to one request may take."""
ENCRYPTED_AT_ONCE = 256 << 10
"""Bytes given to TLS in one call, which may take `ANSWER_WITHIN`."""
ACCEPT_AGAIN = 0.1
"""Seconds until the next attempt after a connection could not be accepted."""
UNPACED = (1 << 32) - 1
"""The rate, in bytes per second, from which on the kernel does not pace."""
_SO_MAX_PACING_RATE = 47
REMEMBERED = 256
"""Number of hosts for which the last reported refusal is remembered."""


class PeerServer:
    """Serves the sealed slots of one arena to other nodes, each connection in a thread.

    Without TLS the kernel sends the pages of shared memory directly. TLS reads them in place.

    Whoever reaches the port may send anything. It must never happen that this costs more than that
    connection: what a request may ask for is limited, and so are those that have proved nothing.
    """

    def __init__(
        self,
        arena: Arena,
        credentials: PeerCredentials,
        host: str,
        port: int,
        warn: Callable[[str], None] = lambda _: None,
        offers: Offers | None = None,
    ) -> None:
        """Start to listen. `warn` is called, in a thread of this server, when a node is refused.

        `offers` is what the node that keeps this one's replica is offered.

        Raises OSError where the address cannot be listened at.
        """
        self._arena = arena
        self._credentials = credentials
        self._warn = warn
        self._offers = offers or Offers(arena)
        self._refused: dict[str, str] = {}
        self._unproven: dict[socket.socket, socket.socket] = {}
        """Connections that are in their handshake, the oldest first, and what ends each. (TLS takes
        the connection itself over.)
        """
        self._counting = threading.Lock()
        self._closed = threading.Event()
        self._listener = addresses.listen(host, port, 64)
        self.address = addresses.own(self._listener)
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # This also ends a blocking `accept`.
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, (host, *_) = self._listener.accept()
            except OSError:
                # No descriptor is left, or the client has gone; later attempts may succeed.
                self._closed.wait(ACCEPT_AGAIN)
                continue
            serving = threading.Thread(
                target=self._serve, args=(connection, host), name="peer", daemon=True
            )
            try:
                self._count(connection)
                serving.start()
            except (OSError, RuntimeError):  # No more descriptors or threads.
                self._proved(connection)
                connection.close()
                self._closed.wait(ACCEPT_AGAIN)

    def _count(self, connection: socket.socket) -> None:
        """Count a new connection, and end the oldest unproven one if there are too many.

        A connection is unproven until its peer has proved itself. A well-meaning peer does so
        within milliseconds.
        """
        with self._counting:
            self._unproven[connection] = connection.dup()
            if len(self._unproven) <= UNPROVEN:
                return
            oldest = self._unproven.pop(next(iter(self._unproven)))
        with oldest, suppress(OSError):  # its thread closes the connection
            oldest.shutdown(socket.SHUT_RDWR)

    def _proved(self, connection: socket.socket) -> None:
        with self._counting:
            ends = self._unproven.pop(connection, None)
        if ends is not None:
            ends.close()

    def _serve(self, connection: socket.socket, host: str) -> None:
        with suppress(OSError, EOFError, msgspec.MsgspecError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._admit(connection, host) as channel:
                while True:
                    channel.settimeout(IDLE_FOR)
                    body = handshake.frame(channel, LONGEST_REQUEST)
                    ident, request = messages.decode_request(body)
                    channel.settimeout(ANSWER_WITHIN)
                    self._answer(channel, ident, request)

    def _admit(self, connection: socket.socket, host: str) -> socket.socket:
        try:
            channel = handshake.admit(connection, self._credentials)
        except PeerRefused as error:
            self._refuse(host, str(error))
            raise
        finally:
            self._proved(connection)
        self._refused.pop(host, None)
        return channel

    def _refuse(self, host: str, why: str) -> None:
        """Report a refusal once, until the host is accepted or is refused for another reason."""
        if self._refused.get(host) != why:
            if len(self._refused) >= REMEMBERED:
                self._refused.clear()
            self._refused[host] = why
            self._warn(f"{host} gets no snapshots from this node: {why}")

    def _answer(self, connection: socket.socket, ident: int, request: PeerRequest) -> None:
        try:
            match request:
                case Inventory():
                    answer = framing.frame(ident, "", self._inventory(request))
                case AwaitOffer():
                    _pace(connection, request.rate)
                    offer = self._offers.next(request)
                    answer = framing.frame(ident, "", offer)
                    if offer is not None:
                        crash_points.reached("replica-offered")
                case Digest():
                    answer = framing.frame(ident, "", self._digests(request))
                case Read():
                    answer = framing.frame(ident, "", self._send(connection, ident, request))
        except CheckpointsError as error:
            answer = framing.frame(ident, str(error), None)
        connection.sendall(answer)

    def _send(self, connection: socket.socket, ident: int, request: Read) -> str:
        """Send the bytes and return their checksum."""
        slot = self._slot(request)
        connection.sendall(framing.frame(ident, "", request.length))
        if isinstance(connection, ssl.SSLSocket):
            data = slot.data[request.offset :][: request.length]
            for begun in range(0, len(data), ENCRYPTED_AT_ONCE):
                connection.sendall(data[begun : begun + ENCRYPTED_AT_ONCE])
        elif request.length:
            with slot.path.open("rb", buffering=0) as file:
                connection.sendfile(file, HEADER + request.offset, request.length)
        if self._offers.is_read(slot.path):
            crash_points.reached("replica-sent")
        return self._checksum(slot, request)

    def _digests(self, request: Digest) -> tuple[int, ...]:
        if request.pieces > MOST_PIECES:
            raise RestoreFailed(f"{request.pieces:,} checksums at once are too many")
        slot = self._slot(request)
        end = request.offset + request.length
        found = tuple(
            xxhash.xxh3_64_intdigest(slot.data[at : min(at + request.piece, end)])
            for at in range(request.offset, end, request.piece)
        )
        self._offers.is_read(slot.path)
        # As with the bytes themselves: only now is it certain whose they were.
        if slot.generation != request.generation:
            raise _overwritten(request)
        return found

    def _checksum(self, slot: Slot, request: Read) -> str:
        checksum = xxhash.xxh3_64_hexdigest(slot.data[request.offset :][: request.length])
        # Only after the bytes were read is it certain that they belonged to the save.
        if slot.generation != request.generation:
            raise _overwritten(request)
        return checksum

    def _inventory(self, request: Inventory) -> tuple[Shelf, ...]:
        save = request.incarnation, request.step, request.layout
        return tuple(
            Shelf(
                header.rank, slot.generation, header.world_size, header.shared, slot.items(header)
            )
            for slot, header in slots.members(self._arena.held(), *save)
        )

    def _slot(self, request: Read | Digest) -> Slot:
        for slot, header in self._arena.held():
            if header.rank == request.rank and slot.generation == request.generation:
                if not 0 <= request.offset <= request.offset + request.length <= len(slot.data):
                    break
                return slot
        raise _overwritten(request)


def _pace(connection: socket.socket, rate: float) -> None:
    """Have the kernel send no faster than this, in bytes per second; 0: as fast as it can."""
    least = int(min(rate, UNPACED)) or UNPACED
    connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("I", least))


def _overwritten(request: Read | Digest) -> RestoreFailed:
    return RestoreFailed(f"the slot of rank {request.rank} has been overwritten")


class Peer:
    """A connection to another node's daemon, used by one thread. Every wait has a deadline."""

    def __init__(
        self, address: str, credentials: PeerCredentials, within: float = RANGE_WITHIN
    ) -> None:
        """Connect and authenticate. An answer may take `within` seconds. Raises `RestoreFailed`."""
        self.address = address
        self._within = within
        try:
            connection = socket.create_connection(addresses.split(address), ANSWER_WITHIN)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = handshake.greet(connection, credentials)
        except PeerRefused as error:
            raise RestoreFailed(f"the checkpoint daemon at {address}: {error}") from error
        except (OSError, ValueError) as error:
            raise RestoreFailed(f"no checkpoint daemon answers at {address}: {error}") from error
        self._socket.settimeout(ANSWER_WITHIN)

    def inventory(self, request: Inventory) -> tuple[Shelf, ...]:
        """Return the sealed slots of a save on that node. Raises `RestoreFailed`."""
        return self._call(request, tuple[Shelf, ...])

    def offer(self, request: AwaitOffer) -> Offer | None:
        """Return the next save for a replica; None if there is none yet. Raises `RestoreFailed`."""
        return self._call(request, Offer | None)  # type: ignore[arg-type]

    def digests(self, request: Digest) -> tuple[int, ...]:
        """Return the checksums of a slot's pieces. Raises `RestoreFailed`."""
        found = self._call(request, tuple[int, ...])
        if len(found) != request.pieces:
            raise RestoreFailed(f"{self.address}: the daemon sent a wrong number of checksums")
        return found

    def read(self, file: tuple[int, int], offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of a slot, and verify them. Raises `RestoreFailed`.

        `file` is the slot's rank and generation.
        """
        deadline = time.monotonic() + self._within
        if self._call(Read(*file, offset, len(target)), int) != len(target):
            raise RestoreFailed(f"{self.address}: the daemon sent a wrong number of bytes")
        try:
            fill(self._socket, target, deadline)
        except OSError as broken:
            raise self._lost(broken) from None
        if self._receive(str) != xxhash.xxh3_64_hexdigest(target):
            raise RestoreFailed(f"{self.address}: the bytes were changed on their way")

    def abort(self) -> None:
        """End a call that another thread waits in. That thread then closes the connection."""
        with suppress(OSError):
            # `SSLSocket.shutdown` would let the other thread read on, undecrypted.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _call(self, request: object, kind: type[T]) -> T:
        try:
            self._socket.sendall(framing.frame(0, request))
        except OSError as broken:
            raise self._lost(broken) from None
        return self._receive(kind)

    def _receive(self, kind: type[T]) -> T:
        try:
            body = handshake.frame(self._socket, LONGEST_ANSWER, self._within)
            _, error, result = framing.decode_reply(body)
            if error:
                raise RestoreFailed(f"{self.address}: {error}")
            return from_msgpack(result, kind)
        except OSError as broken:
            raise self._lost(broken) from None
        except msgspec.MsgspecError as odd:
            raise RestoreFailed(f"{self.address}: its answer is not understood: {odd}") from None

    def _lost(self, error: OSError) -> RestoreFailed:
        return RestoreFailed(f"lost the checkpoint daemon at {self.address}: {error}")
