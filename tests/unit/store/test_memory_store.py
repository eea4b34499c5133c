"""Time and partitions of the store in memory, which only it can have without waiting."""

import pytest
from support.store.memory_store import MemoryStore
from support.store.watch_sinks import Recorder

from spotelastic.errors import Unavailable


class Time:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time) -> MemoryStore:
    return MemoryStore(time)


def test_a_lease_runs_out_by_the_given_clock(store: MemoryStore, time: Time) -> None:
    lease = store.grant(1.2)
    store.put("a", b"1", lease)
    time.now += 1.9
    assert store.get("a") is not None
    assert store.refresh(lease) == 2
    time.now += 1.9
    assert store.get("a") is not None
    time.now += 0.1
    assert store.get("a") is None
    assert store.refresh(lease) == 0


def test_tick_expires_in_order_and_names_the_next_moment(store: MemoryStore, time: Time) -> None:
    late, soon = store.grant(5), store.grant(3)
    store.put("late", b"", late)
    store.put("soon/b", b"", soon)
    store.put("soon/a", b"", soon)
    seen = Recorder()
    store.watch("", seen)
    assert store.tick() == 103
    time.now = 103
    assert store.tick() == 105
    time.now = 200
    assert store.tick() is None
    assert [key for key, _ in seen.told] == ["soon/a", "soon/b", "late"]
    assert seen.changes[0].revision == seen.changes[1].revision < seen.changes[2].revision


def test_delivery_is_done_when_the_write_returns(store: MemoryStore) -> None:
    seen = Recorder()
    store.client().watch("a", seen)
    store.put("a", b"1")
    assert seen.told == [("a", b"1")]


def test_a_client_that_is_cut_off_resumes_with_what_it_missed(store: MemoryStore) -> None:
    other, seen = store.client(), Recorder()
    other.watch("a", seen)
    other.cut()
    with pytest.raises(Unavailable):
        other.get("a")
    store.put("a", b"1")
    store.put("b", b"1")
    store.delete("a")
    assert seen.health == [False]
    assert seen.changes == []
    other.heal()
    assert seen.health == [False, True]
    assert seen.told == [("a", b"1"), ("a", None)]
    store.put("a", b"2")
    assert seen.told[-1] == ("a", b"2")
    assert len(seen.resets) == 1


def test_after_a_compaction_it_starts_anew(store: MemoryStore) -> None:
    other, seen = store.client(), Recorder()
    other.watch("a", seen)
    other.cut()
    store.put("a", b"1")
    store.compact()
    store.put("a", b"2")
    other.heal()
    assert seen.changes == []
    assert [[value.data for value in reset.values] for reset in seen.resets] == [[], [b"2"]]


def test_a_watch_that_begins_while_cut_off_opens_with_a_reset(store: MemoryStore) -> None:
    store.put("a", b"1")
    other, seen = store.client(), Recorder()
    other.cut()
    other.watch("a", seen)
    assert seen.items == []
    other.heal()
    assert seen.items == seen.resets
    assert [value.data for value in seen.resets[0].values] == [b"1"]


def test_the_lease_of_a_client_that_is_cut_off_runs_out(store: MemoryStore, time: Time) -> None:
    other, seen = store.client(), Recorder()
    lease = other.grant(2)
    other.put("node", b"", lease)
    store.watch("node", seen)
    other.cut()
    time.now += 2
    store.tick()
    assert seen.told == [("node", None)]
    other.heal()
    assert other.refresh(lease) == 0
