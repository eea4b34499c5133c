"""The store while members of a real three-member etcd cluster are killed, frozen and wiped."""

import contextlib
import queue
from collections.abc import Iterator

import pytest
from pyetcd import etcdrpc as rpc
from support.processes.patience import PATIENT
from support.store.etcd_members import EtcdCluster, wait_until
from support.store.watch_sinks import Recorder

from spotelastic.errors import Unavailable
from spotelastic.store.election import campaign
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.members import Members
from spotelastic.store.port import Compare, Put
from spotelastic.store.session import Session

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("no_leftover_threads")]


@pytest.fixture
def store(etcd_cluster: EtcdCluster) -> Iterator[EtcdStore]:
    with contextlib.closing(EtcdStore(etcd_cluster.endpoints, timeout=PATIENT)) as made:
        yield made


def store_on(cluster: EtcdCluster, name: str) -> EtcdStore:
    """A store whose first member is `name`; which one it is, is otherwise left to chance."""
    while True:
        store = EtcdStore(cluster.endpoints, timeout=PATIENT)
        if cluster.in_use(store) == name:
            return store
        store.close()


def test_calls_survive_the_death_of_the_leader(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefix: str
) -> None:
    first = store.put(prefix + "a", b"1")
    etcd_cluster.kill(etcd_cluster.leader())
    second = store.put(prefix + "a", b"2")
    value = store.get(prefix + "a")
    assert value is not None
    assert (value.data, value.modified) == (b"2", second)
    assert value.created <= first, "at the first try, if the put was repeated"
    done = store.commit((Compare(prefix + "a", "modified", second),), (Put(prefix + "a", b"3"),))
    assert done.succeeded


def test_a_frozen_member_is_left_for_another(etcd_cluster: EtcdCluster, prefix: str) -> None:
    frozen = etcd_cluster.followers()[0]
    with contextlib.closing(store_on(etcd_cluster, frozen)) as store:
        seen = Recorder()
        store.watch(prefix, seen)
        seen.wait(lambda seen: seen.resets)
        store.put(prefix + "a", b"1")
        seen.wait(lambda seen: seen.changes)
        before = len(seen.resets)  # more than one where the first stream was slow to open
        etcd_cluster.freeze(frozen)
        store.put(prefix + "a", b"2")
        assert etcd_cluster.in_use(store) != frozen
        store.put(prefix + "b", b"1")
        seen.wait(lambda seen: len(seen.changes) == 3)
        assert [key for key, _ in seen.told] == [prefix + "a", prefix + "a", prefix + "b"]
        assert len(seen.resets) == before
        # A member that is slow to show that it serves has not taken over at once.
        assert seen.health in ([], [False, True])


def test_a_commit_that_met_silence_is_not_repeated(etcd_cluster: EtcdCluster, prefix: str) -> None:
    frozen = etcd_cluster.followers()[0]
    with contextlib.closing(store_on(etcd_cluster, frozen)) as store:
        made = store.put(prefix + "a", b"1")
        etcd_cluster.freeze(frozen)
        guard, write = Compare(prefix + "a", "modified", made), Put(prefix + "a", b"2")
        with pytest.raises(Unavailable, match="did not confirm"):
            store.commit((guard,), (write,))
        value = store.get(prefix + "a")
        assert value is not None
        assert value.data == b"1"
        assert store.commit((guard,), (write,)).succeeded
        etcd_cluster.thaw(frozen)
        etcd_cluster.members[frozen].await_service(PATIENT)
        value = store.get(prefix + "a")
        assert value is not None
        assert value.data == b"2"


def test_a_late_put_does_not_overwrite_a_newer_one(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefix: str
) -> None:
    """The frozen member holds the first attempt of each put, and finds it when it thaws."""
    frozen = etcd_cluster.followers()[0]
    keys = [f"{prefix}{index}" for index in range(6)]
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(contextlib.closing(store_on(etcd_cluster, frozen))) for _ in keys
        ]
        for key, each in zip(keys, stores, strict=True):
            each.put(key, b"0")
        etcd_cluster.freeze(frozen)
        for key, each in zip(keys, stores, strict=True):
            each.put(key, b"1")
            assert etcd_cluster.in_use(each) != frozen
            each.put(key, b"2")
        etcd_cluster.thaw(frozen)
        with contextlib.closing(store_on(etcd_cluster, frozen)) as thawed:
            thawed.put(prefix + "after", b"")
        assert [value.data for value in store.range(prefix)[0]] == [b"2"] * len(keys) + [b""]


def test_a_commit_that_never_left_goes_to_another_member(
    etcd_cluster: EtcdCluster, prefix: str
) -> None:
    dead = etcd_cluster.followers()[0]
    etcd_cluster.kill(dead)
    with contextlib.closing(store_on(etcd_cluster, dead)) as store:
        guard = Compare(prefix + "a", "created", 0)
        assert store.commit((guard,), (Put(prefix + "a", b"1"),)).succeeded


@pytest.mark.soak
def test_a_watch_misses_nothing_while_members_come_and_go(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefix: str
) -> None:
    seen = Recorder()
    store.watch(prefix, seen)
    seen.wait(lambda seen: seen.resets)
    store.put(f"{prefix}first", b"")
    seen.wait(lambda seen: seen.changes)
    before = len(seen.resets)  # more than one where the first stream was slow to open
    names = list(etcd_cluster.members)
    for index, name in enumerate(names):
        etcd_cluster.kill(name)
        store.put(f"{prefix}{index}/down", b"")
        etcd_cluster.start(name)
        store.put(f"{prefix}{index}/up", b"")
    last = f"{prefix}{len(names) - 1}/up"
    seen.wait(lambda seen: last in seen.state())
    expected = [f"{prefix}{index}/{side}" for index in range(len(names)) for side in ("down", "up")]
    assert [key for key, _ in seen.told] == [f"{prefix}first", *expected]
    assert len(seen.resets) == before


def test_a_watch_resumes_when_the_whole_cluster_was_down(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefix: str
) -> None:
    seen = Recorder()
    store.watch(prefix, seen)
    seen.wait(lambda seen: seen.resets)
    store.put(prefix + "a", b"1")
    seen.wait(lambda seen: seen.changes)
    before = len(seen.resets)  # more than one where the first stream was slow to open
    etcd_cluster.kill()
    seen.wait(lambda seen: seen.health[-1:] == [False])
    with (
        contextlib.closing(EtcdStore(etcd_cluster.endpoints, timeout=0.3)) as hasty,
        pytest.raises(Unavailable, match=r"did not answer within 0\.\d+ s"),
    ):
        hasty.get(prefix + "a")
    etcd_cluster.start()
    store.put(prefix + "a", b"2")
    seen.wait(lambda seen: len(seen.changes) == 2)
    assert seen.health[:2] == [False, True], "perhaps more often, until the members are settled"
    assert seen.told == [(prefix + "a", b"1"), (prefix + "a", b"2")]
    assert len(seen.resets) == before


def test_a_watch_reads_anew_when_its_history_was_compacted(
    etcd_cluster: EtcdCluster, prefix: str
) -> None:
    """The only member that the watcher knows is cut off while the others move on and compact."""
    away = etcd_cluster.followers()[0]
    others = [name for name in etcd_cluster.members if name != away]
    endpoints = [etcd_cluster.members[name].endpoint for name in others]
    with (
        contextlib.closing(EtcdStore([etcd_cluster.members[away].endpoint])) as watcher,
        contextlib.closing(EtcdStore(endpoints, timeout=PATIENT)) as writer,
        contextlib.closing(Members(endpoints)) as members,
    ):
        seen = Recorder()
        watcher.watch(prefix, seen)
        seen.wait(lambda seen: seen.resets)
        writer.put(prefix + "a", b"1")
        seen.wait(lambda seen: seen.changes)
        etcd_cluster.kill(away)
        seen.wait(lambda seen: seen.health[-1:] == [False])
        before = len(seen.resets)
        writer.delete(prefix + "a")
        revision = writer.put(prefix + "b", b"1")
        compact(members, revision)
        etcd_cluster.start(away)
        seen.wait(lambda seen: len(seen.resets) > before)
        assert seen.health[:2] == [False, True], "perhaps more often, until the member is settled"
        assert [value.key for value in seen.resets[before].values] == [prefix + "b"]
        writer.put(prefix + "c", b"1")
        seen.wait(lambda seen: prefix + "c" in seen.state())
        assert sorted(seen.state()) == [prefix + "b", prefix + "c"]


@pytest.mark.soak
def test_a_watch_on_a_member_without_a_quorum_breaks(
    etcd_cluster: EtcdCluster, prefix: str
) -> None:
    alone = etcd_cluster.followers()[0]
    others = [name for name in etcd_cluster.members if name != alone]
    with contextlib.closing(EtcdStore([etcd_cluster.members[alone].endpoint])) as store:
        seen = Recorder()
        store.watch(prefix, seen)
        seen.wait(lambda seen: seen.resets)
        etcd_cluster.kill(*others)
        seen.wait(lambda seen: seen.health[-1:] == [False])
        etcd_cluster.start(*others)
        seen.wait(lambda seen: seen.health[-1:] == [True])


def test_a_watch_reads_anew_from_a_cluster_that_was_wiped(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefix: str
) -> None:
    for index in range(20):
        store.put(prefix + "old", str(index).encode())
    seen = Recorder()
    store.watch(prefix, seen)
    seen.wait(lambda seen: seen.resets)
    etcd_cluster.wipe()
    seen.wait(lambda seen: seen.health[-1:] == [False])
    before = len(seen.resets)
    etcd_cluster.start()
    seen.wait(lambda seen: len(seen.resets) > before)
    assert seen.state() == {}
    store.put(prefix + "new", b"1")
    seen.wait(lambda seen: prefix + "new" in seen.state())


def test_a_session_survives_the_death_of_the_leader(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefix: str
) -> None:
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    session = Session(store, 20, lost.put)
    assert campaign(store, prefix + "leader", b"me", session.lease) is not None
    seen = Recorder()
    store.watch(prefix + "leader", seen)
    seen.wait(lambda seen: seen.resets)
    for _ in range(2):
        leader = etcd_cluster.leader()
        etcd_cluster.kill(leader)
        wait_until(lambda: store.refresh(session.lease) > 0, "the lease is refreshed")
        etcd_cluster.start(leader)
    assert lost.empty()
    assert session.alive
    assert seen.changes == []
    session.close()
    seen.wait(lambda seen: seen.changes)


def test_a_session_is_lost_when_the_cluster_stays_away(
    etcd_cluster: EtcdCluster, store: EtcdStore, prefix: str
) -> None:
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    session = Session(store, 2, lost.put)
    first = session.lease
    etcd_cluster.kill()
    assert "did not answer" in lost.get(timeout=PATIENT)
    etcd_cluster.start()
    assert session.renew() != first
    store.put(prefix + "a", b"", session.lease)
    assert lost.empty()
    session.close()
    assert store.get(prefix + "a") is None


def test_members_say_who_leads(etcd_cluster: EtcdCluster) -> None:
    first = etcd_cluster.leader()
    etcd_cluster.kill(first)

    def another_leads() -> bool:
        with contextlib.suppress(AssertionError):
            return etcd_cluster.leader() != first
        return False

    wait_until(another_leads, "another member leads")


def compact(members: Members, revision: int) -> None:
    members.call("compact", rpc.CompactionRequest(revision=revision, physical=True), PATIENT)
