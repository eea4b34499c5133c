"""Who belongs to an etcd cluster, as one of its members has it written down, and changes of that.

Every change goes through the cluster's own consensus; what a member that just comes back believes
may be old.
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


@dataclass(frozen=True, slots=True)
class ListedMember:
    """`peer` is its host:port among members. `served`: it has been part of the cluster's life, and
    the others count on what it had written down."""

    id: int
    name: str
    peer: str
    served: bool


@dataclass(frozen=True, slots=True)
class Roster:
    """What the member at `endpoint` told."""

    endpoint: str
    led: bool
    """There is a leader, so that changes are possible."""
    members: tuple[ListedMember, ...]


def ask(endpoints: Sequence[str], tls: TlsFiles | None = None) -> Roster | None:
    """Of the first that answers, one with a leader before others; None when nobody does."""
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
    """Raises `Unavailable` when the cluster did not agree in time."""
    _change(endpoint, "remove", rpc.MemberRemoveRequest(ID=member), tls)


def add(endpoint: str, peer: str, tls: TlsFiles | None = None) -> None:
    """The member may start from now on, and counts for the quorum. Raises `Unavailable`."""
    url = addresses.url("https" if tls else "http", peer)
    _change(endpoint, "add", rpc.MemberAddRequest(peerURLs=[url]), tls)


def hand_over(endpoint: str, heir: int, tls: TlsFiles | None = None) -> None:
    """Lets the member with the id `heir` lead instead of the one at `endpoint`. Raises
    `Unavailable`."""
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
