"""Lets callers of a cluster's etcd do what is theirs, and nothing else: etcd's users and roles.

etcd takes the common name in a caller's certificate for its user:

    certificate of   may
    etcd members     do everything. Controllers and members have it.
    workers          read the run's keys, and write those that agents write (`Keys.of_agents`). A
                     job's code runs beside its agent, so it can do the same.

What must never happen: etcd asks for rights before its callers have theirs, as the run would stand
still then. So users and roles are complete before etcd is told to ask. Every step can be done
again, by several controllers at once as well: whoever dies on the way leaves a cluster that works,
and the next controller that begins goes on.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
from pyetcd import etcdrpc as rpc

from spotelastic.certificates import MEMBER_NAME, WORKER_NAME
from spotelastic.errors import Unavailable
from spotelastic.store.etcd_watch import bounds
from spotelastic.store.keys import Keys
from spotelastic.store.members import MemberChannel, told
from spotelastic.store.tls import TlsFiles

ROOT = "root"
"""The user and role without which etcd asks nobody."""
WORKERS = "workers"
"""The role of nodes."""
_READ, _READ_AND_WRITE = (rpc.auth_pb2.Permission.Type.Value(it) for it in ("READ", "READWRITE"))

Allowed = tuple[int, bytes, bytes]
"""A permission: its kind, the first key, and the first key after it; empty for the one key."""


def restrict(endpoints: Sequence[str], tls: TlsFiles, keys: Keys, timeout: float = 2.0) -> None:
    """Give members and workers their rights in this etcd, and have it ask for them. Idempotent.

    `tls` are a member's files; each call has `timeout` seconds. Raises `Unavailable`.
    """
    told_last = ""
    for endpoint in endpoints:
        with contextlib.closing(MemberChannel(endpoint, tls)) as member:
            try:
                for do in steps(member.auth, keys, timeout):
                    do()
                return
            except grpc.RpcError as error:
                told_last = told(error)
    raise Unavailable(f"etcd's roles could not be set at {', '.join(endpoints)}: {told_last}")


def steps(auth: Any, keys: Keys, timeout: float) -> Iterator[Callable[[], object]]:
    """Yield what is still to be done, in order; etcd's own stub is `auth`."""

    def call(method: str, **fields: Any) -> Callable[[], object]:
        request = getattr(rpc, f"Auth{method.removeprefix('Auth')}Request")(**fields)
        return lambda: _done(getattr(auth, method), request, timeout)

    yield call("RoleAdd", name=ROOT)
    yield call("RoleAdd", name=WORKERS)
    held, wanted = _held(auth, timeout), allowed(keys)
    for kind, key, end in sorted(wanted - held):
        perm = rpc.auth_pb2.Permission(permType=kind, key=key, range_end=end)
        yield call("RoleGrantPermission", name=WORKERS, perm=perm)
    ranges = {(key, end) for _, key, end in wanted}
    for key, end in sorted({(key, end) for _, key, end in held} - ranges):
        yield call("RoleRevokePermission", role=WORKERS, key=key, range_end=end)
    known = auth.UserList(rpc.AuthUserListRequest(), timeout=timeout).users
    for user, role in ((ROOT, ROOT), (MEMBER_NAME, ROOT), (WORKER_NAME, WORKERS)):
        if user not in known:  # Nobody knows the password: certificates name the users.
            yield call("UserAdd", name=user, password=secrets.token_urlsafe(48))
        yield call("UserGrantRole", user=user, role=role)
    yield call("AuthEnable")


def allowed(keys: Keys) -> set[Allowed]:
    """Return what workers may do (pure)."""
    ranges = [bounds(key) if key.endswith("/") else (key.encode(), b"") for key in keys.of_agents]
    return {(_READ, *bounds(keys.root)), *((_READ_AND_WRITE, *each) for each in ranges)}


def _held(auth: Any, timeout: float) -> set[Allowed]:
    answer = auth.RoleGet(rpc.AuthRoleGetRequest(role=WORKERS), timeout=timeout)
    return {(perm.permType, perm.key, perm.range_end) for perm in answer.perm}


def _done(method: Callable[..., object], request: object, timeout: float) -> None:
    """Call it, and take for done what another controller has done."""
    try:
        method(request, timeout=timeout)
    except grpc.RpcError as error:
        if "already exist" not in told(error):
            raise
