"""Votes of a round's ranks: each learns that all of them have come to one place.

Each gives a small number, and learns the largest that one has given.

The smallest collective of gloo wakes two threads for each of its messages. Where ranks share cores,
that takes milliseconds of each step. So ranks have connections of their own for votes, by which a
main thread wakes another one. Each vote has stages: in the first one, a rank tells the three next
ones that it is there, and hears the three before it. In the next stage it tells those that are 4, 8
and 12 further, which so hear of 16, and so on. Four ranks have one stage, a thousand have five.

Must never happen:

- A vote ends for a rank while another one has not begun it. So a rank tells nobody of a stage until
  it has heard all of the one before. After a vote that was left in the middle there is no other.
- Some ranks use connections and others the group's collective. So all compare whether they have
  them, by the group.
- A rank waits for one that is lost. Its agent wakes it as it wakes it from a collective.
"""

import os
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress

import torch
import torch.distributed as dist
from spotelastic_checkpoints import addresses
from torch.distributed.constants import default_pg_timeout

from spotelastic.training.in_place.groups import Groups
from spotelastic.training.runtime.session import Ranks

CONNECTS_AT = 3
"""Number of the vote in which ranks connect: after the step for which others wait at a loss."""
TOLD = 3
"""Ranks that each tells at a stage."""
CONNECT_WITHIN = 2.0
"""Seconds within which the other ranks are reached. They are all there."""
LOOK_EVERY = 0.02
"""Seconds between two looks whether the round is over."""
_HELLO = struct.Struct("!16sI")
"""The secret of who is connected to, and how far before it the rank is that connects."""
_SECONDS = struct.Struct("@ll")
"""Seconds and microseconds, as the kernel takes a time."""

Place = tuple[str, int, bytes]
"""Where a rank listens: address, port and secret. Without an address it cannot."""
Stage = tuple[list[socket.socket], list[socket.socket]]
"""Connections to those who are told, and from those who are heard."""


def stages_of(world_size: int) -> Iterator[list[int]]:
    """Yield, for each stage, how far away the ranks are that a rank tells and hears."""
    apart = 1
    while apart < world_size:
        yield [many * apart for many in range(1, TOLD + 1) if many * apart < world_size]
        apart *= TOLD + 1


class Votes:
    """The votes of one round. All of its ranks have the same."""

    def __init__(self, ranks: Ranks, groups: Groups) -> None:
        self._ranks, self._groups = ranks, groups
        self._count = 0
        self._stages: list[Stage] = []

    def vote(self, value: int = 0) -> int:
        """Return the largest value, from 0 to 255, once all ranks of the round have called this.

        Raises what torch raises of a collective that has failed.
        """
        if self._groups.is_closed:  # a peer must not hear of this rank, which may lack gradients
            raise dist.DistError("the process group was closed before the step vote")
        self._count += 1
        if self._stages:
            return self._exchange(value)
        if self._count == CONNECTS_AT:
            return self._connect(value)
        return largest(value, self._ranks)

    def _exchange(self, value: int) -> int:
        is_over, most = False, bytes((value,))
        try:
            for told, heard in self._stages:
                for each in told:
                    each.send(most)
                for each in heard:
                    if not (theirs := each.recv(1)):
                        raise ConnectionResetError("connection closed by peer")
                    most = max(most, theirs)
            is_over = True
        except OSError as error:
            raise dist.DistNetworkError(f"the step vote has failed: {error}") from error
        finally:
            if not is_over:
                _shut(self._stages)
        return most[0]

    def _connect(self, value: int) -> int:
        """Connect the ranks, if all of them can. This is a vote as well."""
        ranks, secret = self._ranks, os.urandom(16)
        with ExitStack() as stack:
            listener = _listening()
            address, port = "", 0
            if listener is not None:
                address, port = stack.enter_context(listener).getsockname()[:2]
            voted = ranks.gather((value, (address, port, secret)))
            most, places = max(number for number, _ in voted), [place for _, place in voted]
            if listener is None or not all(address for address, *_ in places):
                return most
            stages: list[Stage] = []
            with suppress(OSError):
                told = self._told(places)
                heard = self._heard([*told], listener, secret)
                stages = [
                    ([told[each] for each in stage], [heard[each] for each in stage])
                    for stage in stages_of(ranks.world_size)
                ]
        agreed = torch.tensor([len(stages)])
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=ranks.group)
        if agreed.item():
            self._stages = stages
        else:
            _shut(stages)
        return most

    def _told(self, places: Sequence[Place]) -> dict[int, socket.socket]:
        """Connect to those who are told, and return the connections by how far away they are."""
        rank, size = self._ranks.rank, self._ranks.world_size
        told = {}
        for apart in (apart for stage in stages_of(size) for apart in stage):
            address, port, secret = places[(rank + apart) % size]
            connection = socket.create_connection((address, port), CONNECT_WITHIN)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._groups.votes_by(connection)
            connection.sendall(_HELLO.pack(secret, apart))
            told[apart] = connection
        return told

    def _heard(
        self, expected: Collection[int], listener: socket.socket, secret: bytes
    ) -> dict[int, socket.socket]:
        """Accept the connections of those who are heard, and return them by how far away they are.

        Others may connect as well, and are not listened to.
        """
        options, heard = self._groups.options, dict[int, socket.socket]()
        until = time.monotonic() + CONNECT_WITHIN
        listener.settimeout(LOOK_EVERY)
        while len(heard) < len(expected):
            if self._groups.is_closed or time.monotonic() > until:
                raise TimeoutError("not all ranks have connected")
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(None)
                self._groups.votes_by(connection)
                _receive_within(connection, CONNECT_WITHIN)
                hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
                if len(hello) == _HELLO.size and hello.startswith(secret):
                    heard[_HELLO.unpack(hello)[1]] = connection
        timeout = (options and options.get("timeout")) or default_pg_timeout
        for connection in heard.values():
            _receive_within(connection, timeout.total_seconds())
        return heard


def largest(value: int, ranks: Ranks) -> int:
    """Return the largest value, by a collective of all ranks."""
    told = torch.tensor([value])
    if ranks.group is not None:
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=ranks.group)
    return int(told)


def _listening() -> socket.socket | None:
    """Return a socket that listens where others of the round reach this machine.

    None if there is no way to them.
    """
    try:
        host = addresses.towards(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, 0), family=family, backlog=socket.SOMAXCONN)
    except (OSError, KeyError):
        return None


def _receive_within(connection: socket.socket, seconds: float) -> None:
    """Have the kernel end a wait: Python would do it by one more call for each byte."""
    packed = _SECONDS.pack(int(seconds), 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)


def _shut(stages: Sequence[Stage]) -> None:
    for connection in (each for stage in stages for part in stage for each in part):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
