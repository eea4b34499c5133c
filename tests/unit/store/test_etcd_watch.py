"""A watch against a scripted member, for breaks that a real one cannot be made to repeat."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import grpc
from pyetcd import etcdrpc as rpc
from support.processes.patience import PATIENT
from support.store.watch_sinks import Recorder

from spotelastic.store.etcd_watch import EtcdWatch
from spotelastic.store.members import Members


class Stream:
    """Yields responses; then breaks, or stays open until it is cancelled."""

    def __init__(self, *responses: Any, breaks: bool) -> None:
        self._responses = responses
        self._breaks = breaks
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def __iter__(self) -> Iterator[Any]:
        yield from self._responses
        if not self._breaks:
            self._cancelled.wait(PATIENT)
        raise grpc.RpcError


class OneMember:
    """Stands in for `Members`: one member that holds one key and plays one stream after another."""

    closed = False

    def __init__(self, *streams: Stream) -> None:
        self._streams = iter(streams)
        self.starts: list[int] = []

    @property
    def current(self) -> "OneMember":
        return self

    def __len__(self) -> int:
        return 1

    def fail(self, member: object) -> None: ...

    def pause(self, failures: int) -> None: ...

    def range(self, request: Any, **_: object) -> Any:
        header = rpc.ResponseHeader(cluster_id=1, raft_term=1, revision=9)
        pairs = [] if request.count_only else [{"key": b"/a", "mod_revision": 5}]
        return rpc.RangeResponse(header=header, kvs=pairs)

    def watch(self, request: Any, **_: object) -> Stream:
        self.starts.append(request.create_request.start_revision)
        return next(self._streams)


def created() -> Any:
    return rpc.WatchResponse(created=True)


def changed(revision: int) -> Any:
    event = {"kv": {"key": b"/a", "value": b"%d" % revision, "mod_revision": revision}}
    header = rpc.ResponseHeader(cluster_id=1, raft_term=1, revision=revision + 100)
    return rpc.WatchResponse(header=header, events=[event])


def test_a_reset_is_delivered_although_the_first_stream_never_opened() -> None:
    member = OneMember(Stream(breaks=True), Stream(created(), breaks=False))
    seen = Recorder()
    watch = EtcdWatch(cast(Members, member), "/", seen)
    seen.wait(lambda seen: seen.items)
    watch.close()
    assert seen.items == seen.resets
    assert [value.key for value in seen.resets[0].values] == ["/a"]


def test_it_resumes_after_the_last_event_not_after_the_header() -> None:
    member = OneMember(
        Stream(created(), changed(7), breaks=True), Stream(created(), changed(8), breaks=False)
    )
    seen = Recorder()
    watch = EtcdWatch(cast(Members, member), "/", seen)
    seen.wait(lambda seen: len(seen.changes) == 2)
    watch.close()
    assert member.starts == [10, 8]
    assert seen.health == [False, True]


def test_a_compacted_history_is_read_anew() -> None:
    compacted = rpc.WatchResponse(canceled=True, compact_revision=8)
    member = OneMember(Stream(created(), compacted, breaks=True), Stream(created(), breaks=False))
    seen = Recorder()
    watch = EtcdWatch(cast(Members, member), "/", seen)
    seen.wait(lambda seen: len(seen.resets) == 2)
    watch.close()
    assert member.starts == [10, 10]
    assert seen.changes == []
