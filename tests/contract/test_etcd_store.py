"""What only a store behind a network has to do: silent endpoints and broken connections."""

import contextlib
import socket
from collections.abc import Iterator, Sequence

import pytest
from support.processes.tcp_proxy import Proxy
from support.store.etcd_members import wait_until
from support.store.watch_sinks import Recorder

from spotelastic.errors import Unavailable
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import EtcdMember
from spotelastic.store.port import Compare, Put, StoredValue, WatchItem

pytestmark = pytest.mark.usefixtures("no_leftover_threads")


@pytest.fixture
def proxy(etcd_member: EtcdMember) -> Iterator[Proxy]:
    with contextlib.closing(Proxy(etcd_member.endpoint)) as made:
        yield made


def test_an_endpoint_that_accepts_and_says_nothing_is_left(
    etcd_member: EtcdMember, prefix: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dumb = f"127.0.0.1:{silent.getsockname()[1]}"
        for write in range(4):  # Which endpoint comes first is left to chance.
            store = EtcdStore([dumb, etcd_member.endpoint], timeout=10)
            with contextlib.closing(store):
                store.put(prefix + "a", str(write).encode())
                assert store.endpoint == etcd_member.endpoint


def answered(store: EtcdStore, key: str) -> StoredValue | None:
    """At last: a machine with much to do may take longer than the second of such a store."""
    found: list[StoredValue | None] = []

    def asked() -> bool:
        with contextlib.suppress(Unavailable):
            found.append(store.get(key))
        return bool(found)

    wait_until(asked, "the store answers")
    return found[0]


def test_a_store_that_is_cut_off_says_so_and_recovers(
    etcd_store: EtcdStore, proxy: Proxy, prefix: str
) -> None:
    with contextlib.closing(EtcdStore([proxy.endpoint], timeout=1)) as cut_off:
        made = etcd_store.put(prefix + "a", b"1")
        assert answered(cut_off, prefix + "a") is not None
        proxy.cut()
        with pytest.raises(Unavailable):
            cut_off.commit((Compare(prefix + "a", "modified", made),), (Put(prefix + "a", b"2"),))
        with pytest.raises(Unavailable):
            cut_off.get(prefix + "a")
        proxy.heal()
        assert answered(cut_off, prefix + "a") == etcd_store.get(prefix + "a")


def test_a_watch_that_is_cut_while_it_catches_up_misses_nothing(
    etcd_store: EtcdStore, proxy: Proxy, prefix: str
) -> None:
    """etcd sends a long history in batches, each headed by a revision far beyond its events."""
    seen = Recorder()
    cuts = [True]

    def sink(items: Sequence[WatchItem]) -> None:
        seen(items)
        if seen.changes and cuts:
            cuts.pop()
            proxy.cut()

    with contextlib.closing(EtcdStore([proxy.endpoint], timeout=10)) as watcher:
        watcher.watch(prefix, sink)
        seen.wait(lambda seen: seen.resets)
        proxy.cut()
        seen.wait(lambda seen: seen.health[-1:] == [False])
        before = len(seen.resets)
        history = [str(number).encode() for number in range(2500)]
        for data in history:
            etcd_store.put(prefix + "a", data.ljust(2000))
        proxy.heal()
        seen.wait(lambda seen: not cuts and seen.health[-1:] == [False])
        first = len(seen.changes)
        proxy.heal()
        seen.wait(lambda seen: len(seen.changes) == len(history))
        assert first < len(history)
        assert [(data or b"").rstrip() for _, data in seen.told] == history
        assert len(seen.resets) == before
