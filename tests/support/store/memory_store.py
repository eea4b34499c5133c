"""Implements the key-value store in memory with etcd's semantics, for tests and simulations.

Whole clusters run on it in virtual time. Nothing here sleeps, starts a thread or reads a clock of
its own. Leases run out by the clock that is passed in, at the next call of any client or at `tick`.
A watch delivers changes, in order, before the call that caused them returns, even when a sink
itself writes to the store.

Several clients share one store through `client()`. `cut` and `heal` disconnect one of them and
connect it again, as a network partition does.
"""

import itertools
import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from spotelastic.clock import Clock
from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.store.port import (
    Change,
    Compare,
    Delete,
    Health,
    Put,
    Reset,
    Sink,
    StoredValue,
    TransactionResult,
    WatchItem,
    Write,
)


class MemoryStore:
    """One client of a store in memory, as a `port.Store`."""

    def __init__(self, clock: Clock) -> None:
        self._data = _Data(clock)
        self._reachable = True
        self._closed = False

    def client(self) -> "MemoryStore":
        """Return another client of the same store, with a connection of its own."""
        other = MemoryStore(self._data.clock)
        other._data = self._data
        return other

    # -- the simulated network and time --

    def cut(self) -> None:
        """Disconnect this client: calls fail, and watches deliver nothing."""
        self._reachable = False
        self._data.disconnect(self)

    def heal(self) -> None:
        """Connect this client again: watches resume where they stopped."""
        self._reachable = True
        self._data.reconnect(self)

    def compact(self) -> None:
        """Forget history: watches of disconnected clients resume with a `Reset`."""
        self._data.compact()

    def tick(self) -> float | None:
        """End leases that have run out. Returns when the next one does, by the clock."""
        return self._data.tick()

    # -- port.Store --

    def get(self, key: str) -> StoredValue | None:
        return self._reach().get(key)

    def range(self, prefix: str) -> tuple[tuple[StoredValue, ...], int]:
        return self._reach().range(prefix)

    def put(self, key: str, data: bytes, lease: int = 0) -> int:
        return self._reach().commit((), (Put(key, data, lease),)).revision

    def delete(self, key: str) -> bool:
        data = self._reach()
        with data.lock:
            existed = data.get(key) is not None
            data.commit((), (Delete(key),), deliver=False)
        data.deliver()
        return existed

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> TransactionResult:
        return self._reach().commit(compares, writes)

    def grant(self, ttl: float) -> int:
        return self._reach().grant(ttl)

    def refresh(self, lease: int, timeout: float | None = None) -> float:
        return self._reach().refresh(lease)

    def revoke(self, lease: int) -> None:
        self._reach().revoke(lease)

    def watch(self, prefix: str, sink: Sink) -> "_Watch":
        if self._closed:
            raise Unavailable("the key-value store is closed")
        return self._data.watch(self, prefix, sink, connected=self._reachable)

    def close(self) -> None:
        self._closed = True
        self._data.drop(self)

    def _reach(self) -> "_Data":
        if self._closed:
            raise Unavailable("the key-value store is closed")
        if not self._reachable:
            raise Unavailable("the key-value store did not answer")
        self._data.tick()
        return self._data


@dataclass(slots=True)
class _Lease:
    ttl: float
    expires: float
    keys: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Watch:
    """A watch of one client."""

    data: "_Data"
    owner: MemoryStore
    prefix: str
    sink: Sink
    connected: bool
    begun: bool
    missed: list[Change] | None = None
    """Changes while the client is disconnected; None where a `Reset` has to be delivered instead.
    """
    closed: bool = False

    def close(self) -> None:
        self.closed = True
        self.data.forget(self)


class _Data:
    """What all clients share. The lock is never held while a sink runs."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self._values: dict[str, StoredValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._lease_ids = itertools.count(1)
        self._revision = 1
        self._watches: list[_Watch] = []
        self._deliveries: deque[tuple[_Watch, tuple[WatchItem, ...]]] = deque()
        self._delivering = False

    # -- reading and writing --

    def get(self, key: str) -> StoredValue | None:
        with self.lock:
            return self._values.get(key)

    def range(self, prefix: str) -> tuple[tuple[StoredValue, ...], int]:
        with self.lock:
            found = (value for key, value in sorted(self._values.items()) if key.startswith(prefix))
            return tuple(found), self._revision

    def commit(
        self, compares: Sequence[Compare], writes: Sequence[Write], deliver: bool = True
    ) -> TransactionResult:
        keys = [write.key for write in writes]
        if len(set(keys)) < len(keys):
            raise ValueError("a transaction writes one key twice")
        with self.lock:
            if not all(self._holds(compare) for compare in compares):
                return TransactionResult(succeeded=False, revision=self._revision)
            self._write(writes)
            outcome = TransactionResult(succeeded=True, revision=self._revision)
        if deliver:
            self.deliver()
        return outcome

    def _holds(self, compare: Compare) -> bool:
        value = self._values.get(compare.key)
        if value is None:
            return compare.revision == 0
        seen = value.created if compare.field == "created" else value.modified
        return seen == compare.revision

    def _write(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self._leases:
                raise LeaseLost(f"lease {write.lease:x} is gone; {write.key} was not written")
        revision = self._revision + 1
        changes = [change for write in writes if (change := self._apply(write, revision))]
        if changes:
            self._revision = revision
            self._announce(changes)

    def _apply(self, write: Write, revision: int) -> Change | None:
        before = self._values.pop(write.key, None)
        if before is not None and before.lease in self._leases:
            self._leases[before.lease].keys.discard(write.key)
        if isinstance(write, Delete):
            return Change(write.key, None, revision) if before is not None else None
        created = before.created if before is not None else revision
        value = StoredValue(write.key, write.data, created, revision, write.lease)
        self._values[write.key] = value
        if write.lease:
            self._leases[write.lease].keys.add(write.key)
        return Change(write.key, value, revision)

    # -- leases --

    def grant(self, ttl: float) -> int:
        whole = float(max(1, math.ceil(ttl)))
        with self.lock:
            lease = next(self._lease_ids)
            self._leases[lease] = _Lease(whole, self.clock() + whole)
        return lease

    def refresh(self, lease: int) -> float:
        with self.lock:
            held = self._leases.get(lease)
            if held is None:
                return 0.0
            held.expires = self.clock() + held.ttl
            return held.ttl

    def revoke(self, lease: int) -> None:
        with self.lock:
            self._end(lease)
        self.deliver()

    def tick(self) -> float | None:
        with self.lock:
            now = self.clock()
            due = [lease for lease, held in self._leases.items() if held.expires <= now]
            for lease in sorted(due, key=lambda lease: (self._leases[lease].expires, lease)):
                self._end(lease)
            coming = min((held.expires for held in self._leases.values()), default=None)
        self.deliver()
        return coming

    def _end(self, lease: int) -> None:
        held = self._leases.get(lease)
        if held is not None:
            self._write([Delete(key) for key in sorted(held.keys)])
            del self._leases[lease]

    # -- watches --

    def watch(self, owner: MemoryStore, prefix: str, sink: Sink, connected: bool) -> _Watch:
        watch = _Watch(self, owner, prefix, sink, connected, begun=connected)
        with self.lock:
            self._watches.append(watch)
            if connected:
                self._deliveries.append((watch, (Reset(*self.range(prefix)),)))
        self.deliver()
        return watch

    def _announce(self, changes: Sequence[Change]) -> None:
        for watch in self._watches:
            seen = [change for change in changes if change.key.startswith(watch.prefix)]
            if seen and watch.connected:
                self._deliveries.append((watch, tuple(seen)))
            elif watch.missed is not None:
                watch.missed.extend(seen)

    def disconnect(self, owner: MemoryStore) -> None:
        with self.lock:
            for watch in self._watches:
                if watch.owner is owner and watch.connected:
                    watch.connected, watch.missed = False, []
                    self._deliveries.append((watch, (Health(False),)))
        self.deliver()

    def reconnect(self, owner: MemoryStore) -> None:
        self.tick()
        with self.lock:
            for watch in self._watches:
                if watch.owner is owner and not watch.connected:
                    watch.connected = True
                    self._deliveries.append((watch, self._resume(watch)))
        self.deliver()

    def _resume(self, watch: _Watch) -> tuple[WatchItem, ...]:
        missed, watch.missed = watch.missed, None
        items = (Reset(*self.range(watch.prefix)),) if missed is None else tuple(missed)
        if watch.begun:
            return (Health(True), *items)
        watch.begun = True
        return items

    def compact(self) -> None:
        with self.lock:
            for watch in self._watches:
                if watch.missed:
                    watch.missed = None

    def forget(self, watch: _Watch) -> None:
        with self.lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def drop(self, owner: MemoryStore) -> None:
        with self.lock:
            for watch in [watch for watch in self._watches if watch.owner is owner]:
                watch.close()

    def deliver(self) -> None:
        """Deliver what is due, oldest first.

        A call from within a sink leaves that to the outer call.
        """
        with self.lock:
            if self._delivering:
                return
            self._delivering = True
        try:
            while (due := self._next_delivery()) is not None:
                watch, items = due
                if not watch.closed:
                    watch.sink(items)
        except BaseException:
            self._delivering = False
            raise

    def _next_delivery(self) -> tuple[_Watch, tuple[WatchItem, ...]] | None:
        with self.lock:
            if self._deliveries:
                return self._deliveries.popleft()
            # This is under the same lock as the check for emptiness, so that nothing is left
            # behind.
            self._delivering = False
            return None
