"""Lists, adds and removes the members of an etcd cluster, through the cluster's own consensus.

What a member that has just come back believes may be out of date.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from pyetcd import etcdrpc as rpc
from spotelastic_checkpoints import addresses

from spotelastic.errors import Unavailable
from spotelastic.store.members import MemberChannel
from spotelastic.store.tls import TlsFiles

TIMEOUT = 2.0
"""Seconds for each call."""


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member, as the cluster lists it."""

    id: int
    name: str
    peer: str
    """Endpoint ("host:port") among members."""
    served: bool
    """Whether it has ever served, so that the others rely on what it had written."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The members, as the one at `endpoint` lists them."""

    endpoint: str
    led: bool
    """Whether there is a leader, so that changes are possible."""
    members: tuple[ListedMember, ...]


def ask(endpoints: Sequence[str], tls: TlsFiles | None = None) -> Roster | None:
    """Return the list of the first member that answers; None where none does.

    A member with a leader is preferred to one without.
    """
    found = None
    for endpoint in endpoints:
        with contextlib.closing(MemberChannel(endpoint, tls)) as member:
            try:
                status: Any = member.status(rpc.StatusRequest(), timeout=TIMEOUT)
                listed: Any = member.list(rpc.MemberListRequest(), timeout=TIMEOUT)
            except grpc.RpcError:
                continue
        roster = Roster(endpoint, status.leader != 0, tuple(map(_read, listed.members)))
        if roster.led:
            return roster
        found = found or roster
    return found


def remove(endpoint: str, member: int, tls: TlsFiles | None = None) -> None:
    """Remove a member. Raises `Unavailable` when the cluster did not agree in time."""
    _change(endpoint, "remove", rpc.MemberRemoveRequest(ID=member), tls)


def add(endpoint: str, peer: str, tls: TlsFiles | None = None) -> None:
    """Add a member, which then counts for the quorum and may start. Raises `Unavailable`."""
    url = addresses.url("https" if tls else "http", peer)
    _change(endpoint, "add", rpc.MemberAddRequest(peerURLs=[url]), tls)


def hand_over(endpoint: str, heir: int, tls: TlsFiles | None = None) -> None:
    """Make the member with the id `heir` lead instead of the one at `endpoint`.

    Raises `Unavailable`.
    """
    _change(endpoint, "move_leader", rpc.MoveLeaderRequest(targetID=heir), tls)


def _change(endpoint: str, method: str, request: Any, tls: TlsFiles | None) -> None:
    with contextlib.closing(MemberChannel(endpoint, tls)) as member:
        try:
            getattr(member, method)(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise Unavailable(f"etcd at {endpoint}: {error.details()}") from error


def _read(member: Any) -> ListedMember:
    peer = addresses.of_url(member.peerURLs[0])
    return ListedMember(member.ID, member.name or peer, peer, bool(member.clientURLs))
