"""How daemons come to trust each other, before anything else is said.

    client                                        server
    ClientHello; without certificates HELLO  ──►  refuses one that should have sent the other
               TLS 1.3, both sides show a certificate
                                             ◄──  a nonce
    a nonce, an HMAC over both               ──►
                                             ◄──  an HMAC over both

The HMACs prove the cluster's token without saying it; with certificates it is a second factor. A
node with certificates never speaks in the clear: nobody can talk it out of them.
"""

import hashlib
import hmac
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from spotelastic_checkpoints.peers import tls
from spotelastic_checkpoints.peers.tls import PeerTls

WITHIN = 10.0
"""Seconds for all of it."""
NONCE = 16
MAC = 32
HELLO = b"spotelastic peer"
BY_TLS = b"spotelastic: TLS"
IN_CLEAR = b"spotelastic: tcp"
"""What a server says to a client that should have spoken the other way; as long as a nonce."""
_HANDSHAKE = 0x16
"""The first byte of whoever begins with TLS."""


class PeerRefused(ConnectionError):
    """One side does not trust the other; the message says why, and what the other did."""


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """What the daemons of a cluster know each other by."""

    token: str = field(default="", repr=False)
    tls: PeerTls | None = None


def admit(connection: socket.socket, credentials: PeerCredentials) -> socket.socket:
    """The server's side: returns the channel to go on with.

    Raises `PeerRefused`, or another `OSError` where the other side sent nothing; the connection is
    closed then.
    """
    deadline = time.monotonic() + WITHIN
    with _told(credentials.tls), ExitStack() as undo:
        undo.callback(connection.close)
        connection.settimeout(WITHIN)
        if credentials.tls is None:
            _expect_hello(connection, deadline)
            channel = connection
        else:
            _expect_tls(connection, deadline)
            channel = credentials.tls.contexts().server.wrap_socket(connection, server_side=True)
            undo.callback(channel.close)
            _check_name(channel, credentials.tls)
        mine = os.urandom(NONCE)
        channel.sendall(mine)
        theirs = bytes(exactly(channel, NONCE, deadline))
        proof = bytes(exactly(channel, MAC, deadline))
        if not hmac.compare_digest(proof, _proof(credentials.token, b"client", mine, theirs)):
            raise PeerRefused("it does not know this cluster's token")
        channel.sendall(_proof(credentials.token, b"server", theirs, mine))
        undo.pop_all()
    return channel


def greet(connection: socket.socket, credentials: PeerCredentials) -> socket.socket:
    """The client's side, likewise."""
    deadline = time.monotonic() + WITHIN
    with _told(credentials.tls), ExitStack() as undo:
        undo.callback(connection.close)
        connection.settimeout(WITHIN)
        if credentials.tls is None:
            connection.sendall(HELLO)
            channel = connection
        else:
            channel = credentials.tls.contexts().client.wrap_socket(connection)
            undo.callback(channel.close)
            _check_name(channel, credentials.tls)
        theirs = bytes(exactly(channel, NONCE, deadline))
        if theirs == BY_TLS:
            raise PeerRefused("it speaks TLS only, and this node has no certificates")
        mine = os.urandom(NONCE)
        channel.sendall(mine + _proof(credentials.token, b"client", theirs, mine))
        try:
            proof = bytes(exactly(channel, MAC, deadline))
        except ConnectionError as error:
            raise PeerRefused(f"{error}; is the token the same?") from error
        if not hmac.compare_digest(proof, _proof(credentials.token, b"server", mine, theirs)):
            raise PeerRefused("it does not know this cluster's token")
        undo.pop_all()
    return channel


def exactly(connection: socket.socket, length: int, deadline: float | None = None) -> bytearray:
    data = bytearray(length)
    fill(connection, memoryview(data), deadline)
    return data


def fill(connection: socket.socket, target: memoryview, deadline: float | None = None) -> None:
    """Raises `OSError`; `deadline` is of `time.monotonic`."""
    while target:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError("it sends too slowly")
        count = connection.recv_into(target)
        if not count:
            raise ConnectionError("the connection was closed")
        target = target[count:]


def _proof(token: str, side: bytes, first: bytes, second: bytes) -> bytes:
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
        raise PeerRefused("it speaks in the clear: has it certificates?")


def _check_name(channel: ssl.SSLSocket, ours: PeerTls) -> None:
    certificate = channel.getpeercert() or {}
    # A sequence of sets of pairs: (((key, value), …), …).
    subject = certificate.get("subject", ())
    names = [str(pair[1]) for part in subject for pair in part if pair[0] == "commonName"]
    if ours.name and names != [ours.name]:
        raise PeerRefused(f"its certificate is one of {', '.join(names)!r}, not of {ours.name!r}")


@contextmanager
def _told(ours: PeerTls | None) -> Iterator[None]:
    """Errors of TLS in our own words."""
    try:
        yield
    except ssl.SSLEOFError as error:
        raise ConnectionError("the connection was closed") from error
    except ssl.SSLError as error:
        if ours is None:
            raise
        raise PeerRefused(tls.refusal(error, ours)) from error
