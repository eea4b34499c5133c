"""Connects to the members of an etcd cluster, and sends each call to one that answers.

`pyetcd` provides etcd's messages and stubs. The channels are our own, because its client keeps
using a failed endpoint for minutes and retries nothing. It also cannot tell a call that never left
this machine from one whose outcome is unknown.
"""

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
from pyetcd import etcdrpc as rpc
from spotelastic_checkpoints.backoff import Backoff

from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, LeaseLost, Unavailable
from spotelastic.store.tls import Pem, TlsFiles

REQUIRE_LEADER = (("hasleader", "true"),)
"""Metadata that makes a member without a leader refuse calls at once, and end its watches."""

PATIENCE = (0.25, 1.0)
"""Shortest and longest time of one attempt (s); in between, half of the time that has passed.

The first attempts are short, because a follower lets calls hang when the leader has just died, and
answers the next attempt as soon as there is a new one. Later ones are longer, so that a slow
cluster gets its time.
"""

_ALL_FAILED = Backoff(0.02, 0.25)
"""Back-off after each round of attempts in which every member has failed."""

_REFUSED = ("permission denied", "user name not found")
_BEFORE_ROLES = ("auth store is old", "revision in header is old", "user name is empty")
"""Ends of the errors of a call that was under way while rights changed (`etcd_access.py`). It was
not carried out, and its repetition is answered."""

_OPTIONS = (
    # These notice within two seconds that a member has stopped or was cut off. Without
    # ping_timeout_ms gRPC waits a minute for the answer, whatever keepalive_timeout_ms says.
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 250),
    # A name is resolved again for each connection: a pod comes back with another address. By
    # default its first address would be tried for half a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Connections are not shared, and end with their channel.
    ("grpc.use_local_subchannel_pool", 1),
    # Streams are read in the thread that iterates over them, without a helper thread each.
    ("SingleThreadedUnaryStream", 1),
)


class MemberChannel:
    """The connection to one member, and the calls that the store makes on it.

    Each call takes (request, timeout=, metadata=). `keep_alive` and `watch` are bidirectional
    streams in etcd; only one request is ever sent on them here.
    """

    def __init__(self, endpoint: str, tls: TlsFiles | None = None) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._pem = tls.read() if tls else None
        channel = _channel(endpoint, self._pem)
        kv, lease = rpc.KVStub(channel), rpc.LeaseStub(channel)
        self.close = channel.close
        self.range = kv.Range
        self.txn = kv.Txn
        self.compact = kv.Compact
        self.grant = lease.LeaseGrant
        self.revoke = lease.LeaseRevoke
        maintenance, cluster = rpc.MaintenanceStub(channel), rpc.ClusterStub(channel)
        self.status = maintenance.Status
        self.move_leader = maintenance.MoveLeader
        self.snapshot = maintenance.Snapshot
        self.list = cluster.MemberList
        self.add = cluster.MemberAdd
        self.remove = cluster.MemberRemove
        self.auth = rpc.AuthStub(channel)
        self.keep_alive = channel.unary_unary(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            rpc.LeaseKeepAliveRequest.SerializeToString,
            rpc.LeaseKeepAliveResponse.FromString,
        )
        self.watch = channel.unary_stream(
            "/etcdserverpb.Watch/Watch",
            rpc.WatchRequest.SerializeToString,
            rpc.WatchResponse.FromString,
        )

    def renewed(self) -> "MemberChannel":
        """Return a new channel if the certificate files have changed, else this one.

        A channel keeps the certificates that it was made with, and calls on it end when it is
        closed.
        """
        with suppress(OSError):
            if self._tls is not None and self._tls.read() != self._pem:
                return MemberChannel(self.endpoint, self._tls)
        return self


class Members:
    """All members of the cluster. One is in use; when it fails, the next one takes over."""

    def __init__(self, endpoints: Sequence[str], tls: TlsFiles | None = None) -> None:
        if not endpoints:
            raise ValueError("an etcd cluster needs at least one endpoint")
        # The order is random, so that the clients of a large cluster spread over its members.
        order = random.sample(list(endpoints), len(endpoints))
        self._members = [MemberChannel(endpoint, tls) for endpoint in order]
        self._current = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    @property
    def current(self) -> MemberChannel:
        """The member in use."""
        return self._members[self._current]

    def fail(self, member: MemberChannel) -> None:
        """Use the next member instead of `member`, unless another thread has done so before.

        `member` gets new certificates, which may have been replaced long after it was connected.
        """
        with self._lock:
            if self.current is member:
                self._members[self._current] = member.renewed()
                self._current = (self._current + 1) % len(self._members)

    def pause(self, failures: int) -> None:
        """Wait before the next attempt once every member has failed. `close` ends the wait."""
        rounds, rest = divmod(failures, len(self._members))
        if rounds and not rest:
            self._closed.wait(replace(_ALL_FAILED, failures=rounds).bound)

    def call(self, method: str, request: Any, timeout: float, *, repeatable: bool = True) -> Any:
        """Call a method of the first member that serves it, within `timeout` seconds altogether.

        A call that is not repeatable goes to another member only if it certainly did not arrive.
        Raises `Unavailable`, `LeaseLost` or `ValueError`.
        """
        started = steady()
        failures = 0
        least, most = PATIENCE
        while True:
            if self.closed:
                raise Unavailable("the connection to etcd is closed")
            member = self.current
            passed = steady() - started
            patience = min(most, max(least, passed / 2)) if repeatable else most
            limit = max(0.001, min(patience, timeout - passed))
            try:
                return getattr(member, method)(request, timeout=limit, metadata=REQUIRE_LEADER)
            # gRPC raises this for a channel that another thread has closed.
            except ValueError as error:
                raise Unavailable("the connection to etcd is closed") from error
            except grpc.RpcError as error:
                _raise_if_final(error)
                self.fail(member)
                failures += 1
                if not repeatable and not _never_arrived(error):
                    raise Unavailable(
                        f"etcd at {member.endpoint} did not confirm a write: {told(error)}"
                    ) from error
                self.pause(failures)
                if steady() - started >= timeout:
                    raise Unavailable(self._silence(timeout, error)) from error

    def close(self) -> None:
        """Close all connections, which ends calls under way."""
        self._closed.set()
        for member in self._members:
            member.close()

    def _silence(self, timeout: float, error: Any) -> str:
        where = ", ".join(sorted(member.endpoint for member in self._members))
        return f"etcd ({where}) did not answer within {timeout:.2g} s: {told(error)}"


def _channel(endpoint: str, pem: Pem | None) -> Any:
    if pem is None:
        return grpc.insecure_channel(endpoint, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(*pem)
    return grpc.secure_channel(endpoint, credentials, options=_OPTIONS)


def _raise_if_final(error: Any) -> None:
    """Raise an error to which another member would not give another answer."""
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            raise LeaseLost(f"etcd: {error.details()}") from error
        case _ if str(error.details()).endswith(_REFUSED):
            raise EnvironmentFailure(
                "etcd does not let the holder of this certificate do that: it has no right to it"
            ) from error
        case _ if str(error.details()).endswith(_BEFORE_ROLES):
            pass
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            raise ValueError(f"etcd: {error.details()}") from error
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise Unavailable(f"etcd refuses writes: {error.details()}") from error


def told(error: Any) -> str:
    """Return gRPC's description of an error, without the chain of layers that passed it on."""
    return str(error.details()).rpartition(": ")[2]


def _never_arrived(error: Any) -> bool:
    """Return whether no connection was made, or the member refused without reading the request."""
    details = str(error.details())
    return details.endswith(_BEFORE_ROLES) or (
        error.code() == grpc.StatusCode.UNAVAILABLE
        and (details.startswith("failed to connect") or details == "etcdserver: no leader")
    )
