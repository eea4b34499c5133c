"""Watches all keys of one prefix in etcd, and resumes on another member when a connection breaks.

    read the prefix ──► stream from the next revision ──► broken ──► another member ──► resume
          ▲                                                                               │
          └───────────── history is gone: compacted, wiped, or rolled back ◄──────────────┘

Each watch has one thread, which reads the stream and calls the sink. `Health(False)` is delivered
when the stream broke and no other member took over at once.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import grpc
from pyetcd import etcdrpc as rpc

from spotelastic.store.members import REQUIRE_LEADER, MemberChannel, Members
from spotelastic.store.port import Change, Health, Reset, Sink, StoredValue, WatchItem

_PROBE = 0.5
"""Seconds in which a member has to show that it can serve a watch."""

_JOIN = 5.0


class EtcdWatch:
    """A watch on one prefix, as a `port.Watch`."""

    def __init__(self, members: Members, prefix: str, sink: Sink) -> None:
        self._members = members
        self._prefix = prefix
        self._sink = sink
        self._seen: _Seen | None = None
        self._begun = False
        self._failures = 0

        self._said_unhealthy = False
        self._stream: Any = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {prefix}", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """End the watch; may be called from any thread.

        No item is delivered afterwards, except one whose delivery has begun.
        """
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN)

    def _run(self) -> None:
        while not self.closed and not self._members.closed:
            member = self._members.current
            try:
                self._follow(member)
            except ValueError:  # gRPC raises this for a channel that another thread has closed.
                if not self._members.closed:
                    raise
            except (grpc.RpcError, _StreamEnded):
                self._members.fail(member)
                self._failed()

    def _follow(self, member: MemberChannel) -> None:
        seen, reset = self._catch_up(member)
        key, end = bounds(self._prefix)
        create = rpc.WatchCreateRequest(key=key, range_end=end, start_revision=seen.revision + 1)
        request = rpc.WatchRequest(create_request=create)
        self._stream = member.watch(request, metadata=REQUIRE_LEADER)
        if self.closed:
            self._stream.cancel()
        for response in self._stream:
            if response.compact_revision:
                self._seen = None
                return
            if response.canceled:
                break
            if response.created:
                # This is not done before: a reset that was read but not delivered has to be read
                # again.
                self._seen = seen
                self._connected(reset)
            if response.events:
                # The header may be ahead of the events while the member catches up.
                self._seen = seen = seen.at(response.events[-1].kv.mod_revision)
                self._deliver(_change(event) for event in response.events)
        raise _StreamEnded

    def _catch_up(self, member: MemberChannel) -> tuple["_Seen", Reset | None]:
        """Return where the stream starts, and the whole prefix if it cannot resume there.

        The read proves that the member has a quorum. `hasleader` alone does not, because a follower
        believes in a dead leader for a second.
        """
        seen = self._seen
        request = range_request(self._prefix, count_only=seen is not None)
        response = member.range(request, timeout=_PROBE, metadata=REQUIRE_LEADER)
        if seen is not None and seen.continues_in(response.header):
            return seen, None
        if seen is not None:
            request = range_request(self._prefix)
            response = member.range(request, timeout=_PROBE, metadata=REQUIRE_LEADER)
        values = tuple(value_of(pair) for pair in response.kvs)
        return _Seen.of(response.header), Reset(values, int(response.header.revision))

    def _connected(self, reset: Reset | None) -> None:
        items: list[WatchItem] = [Health(True)] if self._said_unhealthy else []
        if reset is not None:
            items.append(reset)
        self._failures, self._said_unhealthy = 0, False
        self._begun = True
        self._deliver(items)

    def _failed(self) -> None:
        self._failures += 1
        nobody_took_over = self._failures >= min(2, len(self._members))
        if self._begun and nobody_took_over and not self._said_unhealthy:
            self._said_unhealthy = True
            self._deliver([Health(False)])
        self._members.pause(self._failures)

    def _deliver(self, items: Iterable[WatchItem]) -> None:
        batch = tuple(items)
        if batch and not self.closed:
            self._sink(batch)


class _StreamEnded(Exception):
    """The member ended the stream without an error, as it does when it stops."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """How far a watch has followed which history."""

    cluster: int
    term: int
    revision: int

    @classmethod
    def of(cls, header: Any) -> "_Seen":
        """Return the position that a response header says."""
        return cls(header.cluster_id, header.raft_term, header.revision)

    def at(self, revision: int) -> "_Seen":
        """Return the same history at another revision."""
        return replace(self, revision=revision)

    def continues_in(self, header: Any) -> bool:
        """Return whether the header belongs to the same history.

        It does not for another cluster, or one that was wiped or restored from an older state.
        """
        return bool(
            header.cluster_id == self.cluster
            and header.raft_term >= self.term
            and header.revision >= self.revision
        )


def range_request(prefix: str, *, count_only: bool = False) -> Any:
    """Return the request for all keys with this prefix."""
    key, end = bounds(prefix)
    return rpc.RangeRequest(key=key, range_end=end, count_only=count_only)


def value_of(pair: Any) -> StoredValue:
    """Convert a key as etcd sends it."""
    return StoredValue(
        pair.key.decode(), pair.value, pair.create_revision, pair.mod_revision, pair.lease
    )


def bounds(prefix: str) -> tuple[bytes, bytes]:
    """Return etcd's half-open interval of keys that holds exactly the prefix."""
    key = prefix.encode()
    if not key:
        return b"\0", b"\0"
    # Keys are UTF-8, so no byte is 0xff and the last one can always be incremented.
    return key, key[:-1] + bytes([key[-1] + 1])


def _change(event: Any) -> Change:
    deleted = event.type == event.EventType.DELETE
    value = None if deleted else value_of(event.kv)
    return Change(event.kv.key.decode(), value, event.kv.mod_revision)
