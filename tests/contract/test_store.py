"""What every key-value store does, in memory or on a real etcd."""

import threading
from typing import Any

import pytest
from support.processes.patience import PATIENT
from support.store.watch_sinks import Recorder

from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.store.election import campaign, depose
from spotelastic.store.port import Compare, Delete, Put, Store

pytestmark = pytest.mark.usefixtures("no_leftover_threads")


def test_a_key_that_was_never_written_is_absent(store: Store, prefix: str) -> None:
    assert store.get(prefix + "a") is None
    assert store.range(prefix)[0] == ()
    assert store.delete(prefix + "a") is False


def test_a_value_tells_when_it_was_created_and_modified(store: Store, prefix: str) -> None:
    first = store.put(prefix + "a", b"1")
    second = store.put(prefix + "a", b"2")
    value = store.get(prefix + "a")
    assert value is not None
    assert (value.data, value.created, value.modified) == (b"2", first, second)
    assert second > first


def test_a_deleted_key_is_created_anew(store: Store, prefix: str) -> None:
    first = store.put(prefix + "a", b"1")
    assert store.delete(prefix + "a") is True
    assert store.get(prefix + "a") is None
    again = store.put(prefix + "a", b"1")
    value = store.get(prefix + "a")
    assert value is not None
    assert value.created == again > first


def test_a_put_replaces_what_others_wrote_or_deleted(store: Store, prefix: str) -> None:
    key = prefix + "a"
    store.put(key, b"1")
    store.commit((), (Put(key, b"theirs"),))
    store.put(key, b"2")
    store.commit((), (Delete(key),))
    last = store.put(key, b"3")
    value = store.get(key)
    assert value is not None
    assert (value.data, value.created, value.modified) == (b"3", last, last)


def test_a_range_holds_exactly_the_prefix_in_order(store: Store, prefix: str) -> None:
    for name in ("b", "a", "a/1", "ä"):
        store.put(f"{prefix}in/{name}", name.encode())
    store.put(f"{prefix}in0", b"after the prefix")
    last = store.put(f"{prefix}im", b"before the prefix")
    values, revision = store.range(f"{prefix}in/")
    assert [value.data.decode() for value in values] == ["a", "a/1", "b", "ä"]
    assert revision >= last


def test_the_empty_prefix_is_everything(store: Store, prefix: str) -> None:
    store.put(prefix + "a", b"1")
    assert prefix + "a" in [value.key for value in store.range("")[0]]


def test_a_commit_writes_all_or_nothing(store: Store, prefix: str) -> None:
    made = store.put(prefix + "a", b"1")
    store.put(prefix + "b", b"1")
    guard = Compare(prefix + "a", "modified", made)
    writes = (Put(prefix + "a", b"2"), Delete(prefix + "b"), Put(prefix + "c", b"2"))
    outcome = store.commit((guard, Compare(prefix + "c", "created", 0)), writes)
    assert outcome.succeeded
    assert [(value.data, value.modified) for value in store.range(prefix)[0]] == [
        (b"2", outcome.revision),
        (b"2", outcome.revision),
    ]
    before = store.range(prefix)
    refused = store.commit((guard,), (Put(prefix + "a", b"3"), Put(prefix + "d", b"3")))
    assert not refused.succeeded
    assert store.range(prefix)[0] == before[0]


@pytest.mark.parametrize("field", ["created", "modified"])
def test_a_commit_compares_with_absent_and_present_keys(
    store: Store, prefix: str, field: Any
) -> None:
    key = prefix + "a"
    assert not store.commit((Compare(key, field, 7),), (Put(key, b"x"),)).succeeded
    first = store.commit((Compare(key, field, 0),), (Put(key, b"1"),))
    assert first.succeeded
    assert not store.commit((Compare(key, field, 0),), (Put(key, b"2"),)).succeeded
    store.put(key, b"3")
    still = store.commit((Compare(key, field, first.revision),), (Put(key, b"4"),))
    assert still.succeeded is (field == "created")


def test_writing_one_key_twice_in_a_commit_is_a_mistake(store: Store, prefix: str) -> None:
    with pytest.raises(ValueError, match=r"twice|duplicate"):
        store.commit((), (Put(prefix + "a", b"1"), Put(prefix + "a", b"2")))


def test_a_commit_without_effect_makes_no_revision(store: Store, prefix: str) -> None:
    made = store.put(prefix + "a", b"1")
    outcome = store.commit((), (Delete(prefix + "absent"),))
    assert outcome.succeeded
    assert outcome.revision == made


def test_keys_go_with_their_lease(store: Store, prefix: str) -> None:
    lease = store.grant(30)
    store.put(prefix + "a", b"1", lease)
    store.put(prefix + "b", b"1", lease)
    store.put(prefix + "kept", b"1", lease)
    store.put(prefix + "kept", b"1")
    held = store.get(prefix + "a")
    assert held is not None
    assert held.lease == lease
    store.revoke(lease)
    assert [value.key for value in store.range(prefix)[0]] == [prefix + "kept"]
    store.revoke(lease)


def test_a_key_moves_to_the_lease_it_was_last_written_under(store: Store, prefix: str) -> None:
    old, new = store.grant(30), store.grant(30)
    store.put(prefix + "a", b"1", old)
    store.put(prefix + "a", b"1", new)
    store.revoke(old)
    assert store.get(prefix + "a") is not None
    store.revoke(new)
    assert store.get(prefix + "a") is None


def test_nothing_is_written_under_a_lease_that_is_gone(store: Store, prefix: str) -> None:
    lease = store.grant(30)
    assert store.refresh(lease) >= 30
    store.revoke(lease)
    assert store.refresh(lease) == 0
    with pytest.raises(LeaseLost):
        store.put(prefix + "a", b"1", lease)
    with pytest.raises(LeaseLost):
        store.commit((), (Put(prefix + "b", b"1"), Put(prefix + "a", b"1", lease)))
    assert store.range(prefix)[0] == ()


def test_a_watch_starts_with_what_is_there_and_tells_every_change(
    store: Store, prefix: str
) -> None:
    store.put(prefix + "a", b"1")
    store.put("/elsewhere" + prefix, b"1")
    seen = Recorder()
    watch = store.watch(prefix, seen)
    seen.wait(lambda seen: seen.resets)
    store.put(prefix + "a", b"2")
    store.put("/elsewhere" + prefix, b"2")
    store.delete(prefix + "a")
    store.put(prefix + "b", b"3")
    seen.wait(lambda seen: len(seen.changes) == 3)
    assert [value.data for value in seen.resets[0].values] == [b"1"]
    assert seen.items[0] is seen.resets[0]
    assert seen.told == [(prefix + "a", b"2"), (prefix + "a", None), (prefix + "b", b"3")]
    revisions = [change.revision for change in seen.changes]
    assert revisions == sorted(revisions)
    assert revisions[0] > seen.resets[0].revision
    assert seen.state() == {value.key: value for value in store.range(prefix)[0]}
    watch.close()


def test_a_commit_reaches_a_watch_as_one_batch(store: Store, prefix: str) -> None:
    batches: list[int] = []
    seen = Recorder()

    def sink(items: Any) -> None:
        batches.append(len(items))
        seen(items)

    watch = store.watch(prefix, sink)
    seen.wait(lambda seen: seen.resets)
    store.commit((), [Put(f"{prefix}{index}", b"") for index in range(5)])
    seen.wait(lambda seen: len(seen.changes) == 5)
    assert batches == [1, 5]
    watch.close()


def test_the_end_of_a_lease_is_seen_by_watches(store: Store, prefix: str) -> None:
    lease = store.grant(30)
    store.put(prefix + "b", b"", lease)
    store.put(prefix + "a", b"", lease)
    seen = Recorder()
    watch = store.watch(prefix, seen)
    seen.wait(lambda seen: seen.resets)
    store.revoke(lease)
    seen.wait(lambda seen: len(seen.changes) == 2)
    assert dict(seen.told) == {prefix + "a": None, prefix + "b": None}
    watch.close()


def test_a_closed_watch_is_silent(store: Store, prefix: str) -> None:
    closed, open_ = Recorder(), Recorder()
    watch, other = store.watch(prefix, closed), store.watch(prefix, open_)
    closed.wait(lambda seen: seen.resets)
    open_.wait(lambda seen: seen.resets)
    watch.close()
    watch.close()
    store.put(prefix + "a", b"1")
    open_.wait(lambda seen: seen.changes)
    assert closed.changes == []
    other.close()


def test_a_sink_may_write_to_the_store(store: Store, prefix: str) -> None:
    seen = Recorder()

    def echo(items: Any) -> None:
        seen(items)
        if len(seen.changes) == 1:
            store.put(prefix + "answer", b"1")

    watch = store.watch(prefix, echo)
    seen.wait(lambda seen: seen.resets)
    store.put(prefix + "question", b"1")
    seen.wait(lambda seen: len(seen.changes) == 2)
    assert [key for key, _ in seen.told] == [prefix + "question", prefix + "answer"]
    watch.close()


def test_a_closed_store_refuses_and_its_watches_end(store: Store, prefix: str) -> None:
    store.watch(prefix, Recorder())
    store.close()
    with pytest.raises(Unavailable):
        store.put(prefix + "a", b"1")
    store.close()


def test_one_of_many_campaigners_leads(store: Store, prefix: str) -> None:
    leases = [store.grant(30) for _ in range(8)]
    won: list[Any] = []
    start = threading.Barrier(len(leases))

    def run(index: int) -> None:
        start.wait(PATIENT)
        won.append(campaign(store, prefix + "leader", str(index).encode(), leases[index]))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(leases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT)
    assert len(won) == len(leases)
    assert sum(leadership is not None for leadership in won) == 1


def test_who_deposes_a_leader_that_lives_leads_alone(store: Store, prefix: str) -> None:
    key, target = prefix + "leader", prefix + "round"
    lease = store.grant(30)
    old = campaign(store, key, b"old", lease)
    assert old is not None
    assert not depose(store, key, b"another"), "only the one that is meant"
    assert depose(store, key, b"old")
    new = campaign(store, key, b"new", store.grant(30))
    assert new is not None
    assert not store.commit((old.compare,), (Put(target, b"old"),)).succeeded
    assert store.commit((new.compare,), (Put(target, b"new"),)).succeeded
    assert not depose(store, key, b"old") and campaign(store, key, b"old", lease) is None


def test_a_deposed_leader_cannot_write(store: Store, prefix: str) -> None:
    key, target = prefix + "leader", prefix + "round"
    lease = store.grant(30)
    old = campaign(store, key, b"old", lease)
    assert old is not None
    assert store.commit((old.compare,), (Put(target, b"old"),)).succeeded
    store.revoke(lease)
    new = campaign(store, key, b"new", store.grant(30))
    assert new is not None
    assert not store.commit((old.compare,), (Put(target, b"late"),)).succeeded
    assert store.commit((new.compare,), (Put(target, b"new"),)).succeeded
    assert old.resign() is False
    assert new.resign() is True
    assert store.get(key) is None


def test_a_campaign_takes_up_its_own_key(store: Store, prefix: str) -> None:
    key, lease = prefix + "leader", store.grant(30)
    first = campaign(store, key, b"me", lease)
    assert campaign(store, key, b"me", lease) == first is not None
    assert campaign(store, key, b"me", store.grant(30)) is None
