"""Connections to the members of one etcd cluster, and fail-over between them.

`pyetcd` carries etcd's messages and stubs; the channels are our own, because its client pins a
failed endpoint for minutes, retries nothing, and cannot tell a call that never left this machine
from one whose outcome is unknown.
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
from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.store.tls import Pem, TlsFiles

REQUIRE_LEADER = (("hasleader", "true"),)
"""Metadata that makes a member without a leader refuse at once, and end its watch streams."""

PATIENCE = (0.25, 1.0)
"""Seconds that one attempt may take, at least and at most: half of what has passed so far.

Short at first, because a follower lets calls hang when the leader has just died, and answers the
next attempt as soon as there is a new one; longer then, so that a slow cluster gets its time.
"""

_ALL_FAILED = Backoff(0.02, 0.25)
"""After each round of attempts in which every member has failed."""

_OPTIONS = (
    # A member that stopped or was cut off is noticed within two seconds. Without ping_timeout_ms
    # gRPC waits a minute for the answer, whatever keepalive_timeout_ms says.
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Connections of our own, which end with their channel.
    ("grpc.use_local_subchannel_pool", 1),
    # Streams are read in the thread that iterates over them, without a helper thread each.
    ("SingleThreadedUnaryStream", 1),
)


class MemberChannel:
    """One member's channel and the calls that the store makes on it.

    Each takes (request, timeout=, metadata=). `keep_alive` and `watch` are streams in both
    directions to etcd; one request is all that is ever sent on them here.
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
        """Itself, or one with what its files of certificates hold now, if that is not the same.

        A channel keeps those that it was made with; calls under way on it end with it.
        """
        with suppress(OSError):
            if self._tls is not None and self._tls.read() != self._pem:
                return MemberChannel(self.endpoint, self._tls)
        return self


class Members:
    """All members of the cluster; one is in use, and the next takes over when it fails."""

    def __init__(self, endpoints: Sequence[str], tls: TlsFiles | None = None) -> None:
        if not endpoints:
            raise ValueError("an etcd cluster needs at least one endpoint")
        # In random order, so that the clients of a large cluster spread over its members.
        order = random.sample(list(endpoints), len(endpoints))
        self._members = [MemberChannel(endpoint, tls) for endpoint in order]
        self._current = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def current(self) -> MemberChannel:
        return self._members[self._current]

    def fail(self, member: MemberChannel) -> None:
        """`member` did not serve: the next one is in use, unless another thread moved on before.

        Its certificates may have been replaced, long after the connection was made with them.
        """
        with self._lock:
            if self.current is member:
                self._members[self._current] = member.renewed()
                self._current = (self._current + 1) % len(self._members)

    def pause(self, failures: int) -> None:
        """Waits before the next attempt once every member has failed; ends early on `close`."""
        rounds, rest = divmod(failures, len(self._members))
        if rounds and not rest:
            self._closed.wait(replace(_ALL_FAILED, failures=rounds).bound)

    def call(self, method: str, request: Any, timeout: float, *, repeatable: bool = True) -> Any:
        """Calls a method of whichever member serves it, within `timeout` seconds in all.

        What is not repeatable goes to another member only if it certainly did not arrive.
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
            except ValueError as error:  # gRPC's word for a channel closed by another thread
                raise Unavailable("the connection to etcd is closed") from error
            except grpc.RpcError as error:
                _raise_if_final(error)
                self.fail(member)
                failures += 1
                if not repeatable and not _never_arrived(error):
                    raise Unavailable(
                        f"etcd at {member.endpoint} did not confirm a write: {_told(error)}"
                    ) from error
                self.pause(failures)
                if steady() - started >= timeout:
                    raise Unavailable(self._silence(timeout, error)) from error

    def close(self) -> None:
        self._closed.set()
        for member in self._members:
            member.close()

    def _silence(self, timeout: float, error: Any) -> str:
        where = ", ".join(sorted(member.endpoint for member in self._members))
        return f"etcd ({where}) did not answer within {timeout:.2g} s: {_told(error)}"


def _channel(endpoint: str, pem: Pem | None) -> Any:
    if pem is None:
        return grpc.insecure_channel(endpoint, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(*pem)
    return grpc.secure_channel(endpoint, credentials, options=_OPTIONS)


def _raise_if_final(error: Any) -> None:
    """Raises what no other member would answer differently."""
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            raise LeaseLost(f"etcd: {error.details()}") from error
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            raise ValueError(f"etcd: {error.details()}") from error
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise Unavailable(f"etcd refuses writes: {error.details()}") from error


def _told(error: Any) -> str:
    """gRPC's account of an error, less the chain of who heard it from whom."""
    return str(error.details()).rpartition(": ")[2]


def _never_arrived(error: Any) -> bool:
    """Whether no connection was made, or the member refused before it looked at the request."""
    details = str(error.details())
    return error.code() == grpc.StatusCode.UNAVAILABLE and (
        details.startswith("failed to connect") or details == "etcdserver: no leader"
    )
