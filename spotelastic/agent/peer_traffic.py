"""Measures what a node sends to the other nodes of its rounds, as its kernel counts it.

Linux tells of each TCP connection how many bytes the other end has acknowledged, by whichever
process: NCCL's and gloo's sockets count, and checkpoints that go from node to node. EFA, which
never reaches another zone, counts its bytes itself.

What is left out: connections that begin and end between two looks, the last seconds of others,
headers, what is sent again, and etcd, whose members are control nodes.
"""

import contextlib
import math
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from spotelastic.agent.health.efa import DEVICES
from spotelastic.clock import Clock, steady
from spotelastic.model.round import Round

EVERY = 5.0
"""Seconds between two looks at least: a node may have thousands of connections."""
SMOOTHED_OVER = 60.0
"""Seconds over which speeds are averaged: a step may take longer than a look."""
_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_INFO, _BYTES_ACKED, _ATTRIBUTES = 2, 120, 72
"""The attribute with a connection's counters, the place of one in it, and where attributes are."""
_STATES = 0xFFF & ~(1 << 10)
"""All but listening sockets."""
_MAPPED = bytes(10) + b"\xff\xff"
"""How an IPv6 address begins that stands for an IPv4 one."""


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """A TCP connection of this machine."""

    cookie: bytes
    """Its identity in the kernel."""
    peer: bytes
    """IP address of the other end: 4 bytes, or 16."""
    own: bytes
    """IP address of this end."""
    sent: int
    """Bytes that the other end has received."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a node has sent to other nodes."""

    crossed: int = 0
    """Bytes that went to nodes in other zones since the agent's start."""
    crossing: float = 0.0
    """Bytes a second that go to nodes in other zones."""
    sending: float = 0.0
    """Bytes a second that go to all other nodes; 0: not measured."""


NOTHING = Sent()


def connections() -> Iterator[TcpConnection]:
    """Yield the TCP connections of this machine, of all processes.

    Raises `OSError` where the kernel does not tell.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
            wanted = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES)
            head = struct.pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _DUMP, 1, 0)
            asked.settimeout(1.0)
            asked.send(head + wanted)
            yield from _answers(asked)


def _answers(asked: socket.socket) -> Iterator[TcpConnection]:
    while True:
        data, at = asked.recv(1 << 18), 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError(-struct.unpack_from("=i", data, at + 16)[0], "connections")
            if found := _connection(data[at + 16 : at + length]):
                yield found
            at += max(16, (length + 3) & ~3)


def _connection(told: bytes) -> TcpConnection | None:
    at = _ATTRIBUTES
    while at + 4 <= len(told):
        length, kind = struct.unpack_from("=HH", told, at)
        if kind == _INFO and length >= 4 + _BYTES_ACKED + 8:
            (sent,) = struct.unpack_from("=Q", told, at + 4 + _BYTES_ACKED)
            size = 4 if told[0] == socket.AF_INET else 16
            own, peer = (_plain(told[start : start + size]) for start in (8, 24))
            return TcpConnection(told[44:52], peer, own, sent)
        at += max(4, (length + 3) & ~3)
    return None


def _plain(address: bytes) -> bytes:
    """Return the IPv4 address that an IPv6 address stands for, else the address as it is."""
    return address.removeprefix(_MAPPED) if len(address) > 4 else address


def _packed(address: str) -> bytes:
    """Return the bytes of an address; none for a name."""
    try:
        return _plain(ip_address(address).packed)
    except ValueError:
        return b""


def by_efa(folder: Path = DEVICES) -> int:
    """Return the bytes that this machine's EFA devices have sent since its start."""
    return sum(int(each.read_text()) for each in folder.glob("*/ports/*/hw_counters/tx_bytes"))


class PeerTraffic:
    """Measures one node's traffic. Used by one thread."""

    def __init__(
        self,
        node: str,
        connections: Callable[[], Iterable[TcpConnection]] = connections,
        by_efa: Callable[[], int] = by_efa,
        clock: Clock = steady,
    ) -> None:
        self._node = node
        self._connections, self._by_efa, self._clock = connections, by_efa, clock
        self._zones: dict[bytes, str] = {}
        """The zone of each other node that was in a round, by its address; "": not known."""
        self._zone, self._shared = "", b""
        """Its own zone; and its own address, where nodes on this machine share its connections."""
        self._before: dict[bytes, int] = {}
        self._efa: int | None = None
        self._looked_at = -math.inf
        self._sent = NOTHING

    def __call__(self, round_: Round | None) -> Sent:
        """Return what was sent so far, to the members of this round and of those before."""
        now = self._clock()
        if now - self._looked_at < EVERY:
            return self._sent
        for member in round_.members if round_ is not None else ():
            if member.node == self._node:
                own = _packed(member.address)
                self._zone = member.zone
                self._shared = own if own and ip_address(own).is_loopback else b""
            elif address := _packed(member.address):
                self._zones[address] = member.zone
        # What is not told is not measured.
        with contextlib.suppress(OSError, ValueError, struct.error):
            self._look(now)
        return self._sent

    def _look(self, now: float) -> None:
        before, there, efa = self._before, dict[bytes, int](), self._by_efa()
        crossed, sent = 0, max(0, efa - self._efa) if self._efa is not None else 0
        for each in self._connections():
            zone = self._zones.get(each.peer)
            if zone is None or (self._shared and each.own != self._shared):
                continue
            there[each.cookie] = each.sent
            new = max(0, each.sent - before.get(each.cookie, 0))
            sent += new
            crossed += new if zone and self._zone and zone != self._zone else 0
        passed = now - self._looked_at
        share = 1.0 - math.exp(-passed / SMOOTHED_OVER)
        last, speeds = self._sent, (crossed / passed, sent / passed)
        self._sent = Sent(
            last.crossed + crossed,
            last.crossing + share * (speeds[0] - last.crossing),
            last.sending + share * (speeds[1] - last.sending),
        )
        self._before, self._efa, self._looked_at = there, efa, now
