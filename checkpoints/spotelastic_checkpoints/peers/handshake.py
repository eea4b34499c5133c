"""Authenticates two checkpoint daemons of a cluster to each other when one connects to the other.

    client                                        server
    ClientHello; without certificates HELLO  ──►  refuses one that should have sent the other
               TLS 1.3, both sides show a certificate
                                             ◄──  its protocol, a nonce
    its protocol, a nonce, an HMAC over all  ──►
                                             ◄──  an HMAC over all

The HMACs prove that each side knows the cluster's token, without sending it. With certificates the
token is a second factor. A node with certificates never speaks without TLS, so that it cannot be
talked into that.
"""

import hashlib
import hmac
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from spotelastic_checkpoints import framing
from spotelastic_checkpoints.peers import tls
from spotelastic_checkpoints.peers.tls import PeerTls
from spotelastic_checkpoints.protocol_version import PROTOCOL, ProtocolVersion, refusal

WITHIN = 10.0
"""Seconds for the whole handshake."""
NONCE = 16
"""Bytes of a nonce."""
MAC = 32
"""Bytes of an HMAC."""
HELLO = b"spotelastic peer"
"""First bytes of a client without certificates."""
FRAME_WITHIN = 10.0
"""Seconds in which a message has come once its length is known."""
_AT_ONCE = 1 << 20
"""Bytes for which memory is taken before they have come."""
BY_TLS = b"spotelastic: TLS"
"""Answer of a server with certificates to a client without. It is as long as a nonce."""
IN_CLEAR = b"spotelastic: tcp"
"""Answer of a server without certificates to a client with them. It is as long as a nonce."""
VERSION = struct.Struct(">4sHH")
"""How each side names its protocol: a magic word, major, minor. It is the same in all versions."""
_MAGIC = b"SPOT"
_HANDSHAKE = 0x16
"""The first byte of a client that begins with TLS."""


class PeerRefused(ConnectionError):
    """One side does not trust the other. The message says why, with "it" for the other side."""


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """What the daemons of a cluster authenticate each other by."""

    token: str = field(default="", repr=False)
    """Secret of the cluster."""
    tls: PeerTls | None = None
    """Certificates; None where daemons speak without TLS."""
    within: float = WITHIN
    """Seconds for the whole handshake."""


def admit(connection: socket.socket, credentials: PeerCredentials) -> socket.socket:
    """Authenticate a client on the server's side, and return the channel to go on with.

    Raises `PeerRefused`, or another `OSError` where the connection failed, and closes the
    connection.
    """
    deadline = time.monotonic() + credentials.within
    with _told(credentials.tls), ExitStack() as undo:
        undo.callback(connection.close)
        connection.settimeout(credentials.within)
        if credentials.tls is None:
            _expect_hello(connection, deadline)
            channel = connection
        else:
            _expect_tls(connection, deadline)
            channel = credentials.tls.contexts().server.wrap_socket(connection, server_side=True)
            undo.callback(channel.close)
            _check_name(channel, credentials.tls)
        mine = _version() + os.urandom(NONCE)
        channel.sendall(mine)
        theirs = bytes(exactly(channel, VERSION.size, deadline))
        _check_version(theirs)
        theirs += exactly(channel, NONCE, deadline)
        proof = bytes(exactly(channel, MAC, deadline))
        if not hmac.compare_digest(proof, proof_of(credentials.token, b"client", mine, theirs)):
            raise PeerRefused("it does not know this cluster's token")
        channel.sendall(proof_of(credentials.token, b"server", theirs, mine))
        undo.pop_all()
    return channel


def greet(connection: socket.socket, credentials: PeerCredentials) -> socket.socket:
    """Authenticate a server on the client's side, and return the channel to go on with.

    Raises `PeerRefused`, or another `OSError` where the connection failed, and closes the
    connection.
    """
    deadline = time.monotonic() + credentials.within
    with _told(credentials.tls), ExitStack() as undo:
        undo.callback(connection.close)
        connection.settimeout(credentials.within)
        if credentials.tls is None:
            connection.sendall(HELLO)
            channel = connection
        else:
            channel = credentials.tls.contexts().client.wrap_socket(connection)
            undo.callback(channel.close)
            _check_name(channel, credentials.tls)
        theirs = bytes(exactly(channel, VERSION.size, deadline))
        if BY_TLS.startswith(theirs):
            raise PeerRefused("it speaks TLS only, and this node has no certificates")
        mine = _version() + os.urandom(NONCE)
        try:
            _check_version(theirs)
        except PeerRefused:
            channel.sendall(mine)  # so that the other side can name both, too
            raise
        theirs += exactly(channel, NONCE, deadline)
        channel.sendall(mine + proof_of(credentials.token, b"client", theirs, mine))
        try:
            proof = bytes(exactly(channel, MAC, deadline))
        except ConnectionError as error:
            raise PeerRefused(f"{error}; is the token the same?") from error
        if not hmac.compare_digest(proof, proof_of(credentials.token, b"server", mine, theirs)):
            raise PeerRefused("it does not know this cluster's token")
        undo.pop_all()
    return channel


def _version() -> bytes:
    return VERSION.pack(_MAGIC, *PROTOCOL)


def _check_version(said: bytes) -> None:
    magic, *protocol = VERSION.unpack(said)
    if magic != _MAGIC:
        raise ConnectionError("it is no checkpoint daemon")
    if refused := refusal(ProtocolVersion(*protocol), "it", "this node's checkpoint daemon"):
        raise PeerRefused(refused)


def exactly(connection: socket.socket, length: int, deadline: float | None = None) -> bytearray:
    """Receive exactly `length` bytes. Raises as `fill` does."""
    data = bytearray(length)
    fill(connection, memoryview(data), deadline)
    return data


def fill(connection: socket.socket, target: memoryview, deadline: float | None = None) -> None:
    """Receive until `target` is full.

    Raises `TimeoutError` after `deadline` (of `time.monotonic`), however the bytes come, or another
    `OSError`.
    """
    patience = connection.gettimeout()
    try:
        while target:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("it sends too slowly")
                if patience is None or left < patience:
                    connection.settimeout(left)
            count = connection.recv_into(target)
            if not count:
                raise ConnectionError("the connection was closed")
            target = target[count:]
    finally:
        connection.settimeout(patience)


def frame(connection: socket.socket, longest: int, within: float | None = None) -> bytes:
    """Receive a message that is framed by its length, and return it without that.

    Its sender is not believed: memory is taken as the bytes come, and only up to `longest`. With
    `within`, the whole may take so many seconds; else all that follows its length.

    Raises `ConnectionError` for a longer one, and as `fill` does.
    """
    deadline = None if within is None else time.monotonic() + within
    (length,) = framing.FRAME.unpack(exactly(connection, framing.FRAME.size, deadline))
    if length > longest:
        raise ConnectionError(f"a message of {length:,} bytes is too long")
    if deadline is None:
        deadline = time.monotonic() + FRAME_WITHIN
    body = bytearray()
    while len(body) < length:
        body += exactly(connection, min(length - len(body), _AT_ONCE), deadline)
    return bytes(body)


def proof_of(token: str, side: bytes, first: bytes, second: bytes) -> bytes:
    """Return the proof of one side that it knows the job's token, bound to both random numbers.

    `side` is b"client" or b"server"; `first` and `second` are the numbers of both sides.
    """
    return hmac.new(token.encode(), side + first + second, hashlib.sha256).digest()


def _expect_hello(connection: socket.socket, deadline: float) -> None:
    said = exactly(connection, len(HELLO), deadline)
    if said[0] == _HANDSHAKE:
        connection.sendall(IN_CLEAR)
        raise PeerRefused("it speaks TLS only, and this node has no certificates")
    if said != HELLO:
        raise ConnectionError("it is no checkpoint daemon")


def _expect_tls(connection: socket.socket, deadline: float) -> None:
    first = connection.recv(1, socket.MSG_PEEK)
    if first and first[0] != _HANDSHAKE:
        if exactly(connection, len(HELLO), deadline) != HELLO:
            raise ConnectionError("it is no checkpoint daemon")
        connection.sendall(BY_TLS)
        raise PeerRefused("it does not speak TLS: has it been given certificates?")


def _check_name(channel: ssl.SSLSocket, ours: PeerTls) -> None:
    certificate = channel.getpeercert() or {}
    # The subject is a sequence of sequences of pairs: (((key, value), …), …).
    subject = certificate.get("subject", ())
    names = [str(pair[1]) for part in subject for pair in part if pair[0] == "commonName"]
    if ours.name and names != [ours.name]:
        raise PeerRefused(f"its certificate is one of {', '.join(names)!r}, not of {ours.name!r}")


@contextmanager
def _told(ours: PeerTls | None) -> Iterator[None]:
    """Turn errors of TLS into `PeerRefused` or `ConnectionError` with plain messages."""
    try:
        yield
    except ssl.SSLEOFError as error:
        raise ConnectionError("the connection was closed") from error
    except ssl.SSLError as error:
        if ours is None:
            raise
        raise PeerRefused(tls.refusal(error, ours)) from error
