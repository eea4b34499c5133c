"""Implements the key-value store on a real etcd cluster, with fail-over between its members.

Reads are linearizable. Calls go to another member within their deadline when one does not answer.
Watches (`etcd_watch.py`) resume by themselves.

A request that was given up may still be carried out much later, by a member that was frozen. So a
put or delete is sent as a transaction on the revision that it replaces, and has no effect once its
repetition succeeded. A `commit` is only repeated when it certainly did not arrive. Otherwise
`Unavailable` says that the outcome is unknown.
"""

import contextlib
import math
import threading
from collections.abc import Sequence
from typing import Any

from pyetcd import etcdrpc as rpc

from spotelastic.clock import steady
from spotelastic.errors import LeaseLost
from spotelastic.store.etcd_watch import EtcdWatch, range_request, value_of
from spotelastic.store.members import Members
from spotelastic.store.port import Compare, Delete, Put, Sink, StoredValue, TransactionResult, Write
from spotelastic.store.tls import TlsFiles

_REMEMBERED = 4096
"""Number of keys whose last revision is remembered."""


class EtcdStore:
    """An etcd cluster as a `port.Store`.

    etcd takes up to two seconds to elect its own leader at default timers. Calls made meanwhile may
    raise `Unavailable` unless `timeout` is longer.
    """

    def __init__(
        self, endpoints: Sequence[str], *, timeout: float = 2.0, tls: TlsFiles | None = None
    ) -> None:
        """Make a client.

        `endpoints` are "host:port"; `timeout` is the deadline of each call in seconds.
        """
        self._members = Members(endpoints, tls)
        self._timeout = timeout
        self._written: dict[str, int] = {}
        self._watches: list[EtcdWatch] = []
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """Endpoint of the member in use."""
        return self._members.current.endpoint

    def get(self, key: str) -> StoredValue | None:
        return self._get(key, steady() + self._timeout)

    def range(self, prefix: str) -> tuple[tuple[StoredValue, ...], int]:
        response = self._call("range", range_request(prefix))
        return tuple(value_of(pair) for pair in response.kvs), int(response.header.revision)

    def put(self, key: str, data: bytes, lease: int = 0) -> int:
        write, read = Put(key, data, lease), rpc.RangeRequest(key=key.encode())
        deadline = steady() + self._timeout
        replaced = self._written.get(key, 0)
        while True:
            request = rpc.TxnRequest(
                compare=[_compare(Compare(key, "modified", replaced))],
                success=[_write(write)],
                failure=[rpc.RequestOp(request_range=read)],
            )
            response = self._call("txn", request, deadline)
            if response.succeeded:
                return self._wrote(key, int(response.header.revision))
            found = response.responses[0].response_range.kvs
            replaced = found[0].mod_revision if found else 0

    def delete(self, key: str) -> bool:
        deadline = steady() + self._timeout
        existed = False
        while (value := self._get(key, deadline)) is not None:
            existed = True
            request = rpc.TxnRequest(
                compare=[_compare(Compare(key, "modified", value.modified))],
                success=[_write(Delete(key))],
            )
            if self._call("txn", request, deadline).succeeded:
                break
        self._written.pop(key, None)
        return existed

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> TransactionResult:
        request = rpc.TxnRequest(
            compare=[_compare(compare) for compare in compares],
            success=[_write(write) for write in writes],
        )
        response = self._members.call("txn", request, self._timeout, repeatable=False)
        return TransactionResult(bool(response.succeeded), int(response.header.revision))

    def grant(self, ttl: float) -> int:
        """Grant a lease.

        One of an earlier attempt may be left behind after a fail-over, and runs out.
        """
        response = self._call("grant", rpc.LeaseGrantRequest(TTL=max(1, math.ceil(ttl))))
        return int(response.ID)

    def refresh(self, lease: int, timeout: float | None = None) -> float:
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        limit = self._timeout if timeout is None else timeout
        return float(self._members.call("keep_alive", request, limit).TTL)

    def revoke(self, lease: int) -> None:
        with contextlib.suppress(LeaseLost):  # The lease is gone, which is what was asked for.
            self._call("revoke", rpc.LeaseRevokeRequest(ID=lease))

    def watch(self, prefix: str, sink: Sink) -> EtcdWatch:
        watch = EtcdWatch(self._members, prefix, sink)
        with self._lock:
            self._watches = [other for other in self._watches if not other.closed]
            self._watches.append(watch)
        return watch

    def close(self) -> None:
        """End all watches and their threads. No call may follow."""
        with self._lock:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()
        self._members.close()

    def _get(self, key: str, deadline: float) -> StoredValue | None:
        response = self._call("range", rpc.RangeRequest(key=key.encode()), deadline)
        return value_of(response.kvs[0]) if response.kvs else None

    def _wrote(self, key: str, revision: int) -> int:
        """Remember the key's revision, which saves the next put a round trip.

        It may be out of date.
        """
        if len(self._written) >= _REMEMBERED:
            self._written.clear()
        self._written[key] = revision
        return revision

    def _call(self, method: str, request: Any, deadline: float | None = None) -> Any:
        limit = self._timeout if deadline is None else max(0.0, deadline - steady())
        return self._members.call(method, request, limit)


def _write(write: Write) -> Any:
    if isinstance(write, Put):
        put = rpc.PutRequest(key=write.key.encode(), value=write.data, lease=write.lease)
        return rpc.RequestOp(request_put=put)
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=write.key.encode()))


def _compare(compare: Compare) -> Any:
    key, equal = compare.key.encode(), rpc.Compare.CompareResult.EQUAL
    target, field = rpc.Compare.CompareTarget.MOD, "mod_revision"
    if compare.field == "created":
        target, field = rpc.Compare.CompareTarget.CREATE, "create_revision"
    return rpc.Compare(result=equal, target=target, key=key, **{field: compare.revision})
