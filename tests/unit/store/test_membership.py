"""The writes of rendezvous/membership.py, on the store in memory."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from spotelastic_checkpoints.types import Commit
from support.store.memory_store import MemoryStore

from spotelastic.model.agreement import Vote
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.interval import Interval
from spotelastic.model.job import Reference, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.model.round import Member, Round, RoundRecord
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.decision import Action, CloseRound, CompleteHistory, WriteRound
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import decode, encode
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys
from spotelastic.store.port import Compare, StoredValue, TransactionResult, Write

KEYS = Keys("r")
ROUND = Round(1, "one", "proposed", (Member("a", "a1", 0, "127.0.0.1", "z", 1),), "start", "x")
SETTINGS = Settings(2, 2)


def node(name: str, fingerprint: Fingerprint = Fingerprint()) -> Node:  # noqa: B008
    return Node(name, f"{name}-1", "", "", fingerprint)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(lambda: 0.0)


def holding(store: MemoryStore) -> Compare:
    leadership = campaign(store, KEYS.holder, b"a", store.grant(10))
    assert leadership is not None
    return leadership.compare


def events(store: MemoryStore) -> list[Event]:
    return [decode(value.data, Event) for value in store.range(KEYS.event())[0]]


def test_a_holder_that_lost_its_key_writes_nothing(store: MemoryStore) -> None:
    mine = holding(store)
    store.delete(KEYS.holder)
    outcome = membership.perform(store, KEYS, RunState(), [WriteRound(ROUND)], mine, 1.0)
    assert not outcome.succeeded
    assert store.get(KEYS.round) is None and events(store) == []


def test_a_decision_on_an_outdated_round_writes_nothing(store: MemoryStore) -> None:
    mine = holding(store)
    assert membership.perform(store, KEYS, RunState(), [WriteRound(ROUND)], mine, 1.0).succeeded
    assert not membership.perform(store, KEYS, RunState(), [WriteRound(ROUND)], mine, 1.0).succeeded


def test_a_round_that_ends_before_its_first_step_has_executed_none(store: MemoryStore) -> None:
    mine = holding(store)
    actions: list[Action] = [CloseRound(ROUND), CompleteHistory(1, 0.0, 0, 0.0)]
    membership.perform(store, KEYS, RunState(), actions, mine, 5.0)
    value = store.get(KEYS.history(1))
    assert value is not None
    assert decode(value.data, RoundRecord).last_step == ROUND.resume.step


def test_the_deadline_joins_a_drain_that_was_written_without_one(store: MemoryStore) -> None:
    by_queue = Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "sqs", 10.0, 11.0)
    by_imds = Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "imds", 10.5, 10.9, 130.0)
    membership.write_drain(store, KEYS, Drain("a", by_queue))
    membership.write_drain(store, KEYS, Drain("a", by_imds))
    membership.write_drain(store, KEYS, Drain("a", by_queue))
    value = store.get(KEYS.drain("a"))
    assert value is not None
    notice = decode(value.data, Drain).notice
    assert (notice.source, notice.deadline) == ("sqs", 130.0)


@pytest.mark.parametrize(("mine", "theirs"), [(130.0, None), (130.0, 90.0), (90.0, 130.0)])
def test_the_earliest_deadline_holds_whoever_comes_between(
    store: MemoryStore, mine: float, theirs: float | None
) -> None:
    """At every point of what this one reads and writes."""
    drain = Drain("a", Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "imds", 10.5, 10.9, mine))
    other = Drain("a", Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "sqs", 10.0, 11.0, theirs))
    known = Drain("a", Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "sqs", 10.0, 11.0))
    for there, call in itertools.product((False, True), range(3)):
        store.delete(KEYS.drain("a"))
        if there:
            membership.write_drain(store, KEYS, known)
        overtaken = Overtaken(store, call, other)
        membership.write_drain(overtaken, KEYS, drain)  # type: ignore[arg-type]
        if overtaken.calls <= call:
            membership.write_drain(store, KEYS, other)
        value = store.get(KEYS.drain("a"))
        assert value is not None
        assert decode(value.data, Drain).notice.deadline == min(mine, theirs or mine)


class Overtaken:
    """A store that somebody else writes a drain to just before its call of that number."""

    def __init__(self, store: MemoryStore, number: int, drain: Drain) -> None:
        self._store, self._number, self._drain = store, number, drain
        self.calls = 0

    def _count(self) -> None:
        if self.calls == self._number:
            membership.write_drain(self._store, KEYS, self._drain)
        self.calls += 1

    def get(self, key: str) -> StoredValue | None:
        self._count()
        return self._store.get(key)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> TransactionResult:
        self._count()
        return self._store.commit(compares, writes)


def test_a_notice_is_written_in_one_transaction(store: MemoryStore) -> None:
    """Its two minutes are running."""
    drain = Drain("a", Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "imds", 10.5, 10.9, 130.0))
    counted = Overtaken(store, -1, drain)
    membership.write_drain(counted, KEYS, drain)  # type: ignore[arg-type]
    assert counted.calls == 1


def test_a_commit_is_told_once_by_whoever_is_first(store: MemoryStore) -> None:
    for node in ("a", "b"):
        membership.tell_commit(store, KEYS, node, Commit(1, 50), 7.0)
    membership.tell_commit(store, KEYS, "b", Commit(2, 60), 8.0)
    membership.tell_commit(store, KEYS, "a", Commit(1, 55), 8.5)
    assert [(e.node, e.data["step"]) for e in events(store)] == [("a", 50), ("b", 60)]


def test_a_node_that_does_not_match_is_refused_with_both_sides(store: MemoryStore) -> None:
    first = node("a", Fingerprint(torch="2.13", workers=2))
    other = node("b", Fingerprint(torch="2.12", workers=2))
    lease = store.grant(2)
    assert membership.join(store, KEYS, first, SETTINGS, lease) is None
    refused = membership.join(store, KEYS, other, SETTINGS, lease)
    assert refused is not None and not refused.passing
    assert refused.reason == "node b does not match node a of this run: torch 2.12 here, 2.13 there"
    assert store.get(KEYS.live("b")) is None


def test_a_node_may_have_another_number_of_workers(store: MemoryStore) -> None:
    lease = store.grant(2)
    for name, workers in (("a", 1), ("b", 8)):
        own, settings = Fingerprint(workers=workers), replace(SETTINGS, workers=workers)
        assert membership.join(store, KEYS, node(name, own), settings, lease) is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (replace(SETTINGS, min_nodes=3, max_nodes=3), "--nnodes 3 here, 2 there"),
        (replace(SETTINGS, max_nodes=4), "--nnodes 2:4 here, 2 there"),
        (replace(SETTINGS, max_restarts=9), "--max-restarts 9 here, 3 there"),
        (replace(SETTINGS, gang=True), "--gang given here, not given there"),
        (replace(SETTINGS, rank_policy="pinned"), "--rank-policy pinned here, stable there"),
        (replace(SETTINGS, snapshot_every=Interval(5)), "--snapshot-every 5 here, auto there"),
    ],
)
def test_flags_that_all_nodes_share_are_compared(
    store: MemoryStore, settings: Settings, told: str
) -> None:
    lease = store.grant(2)
    assert membership.join(store, KEYS, node("a"), SETTINGS, lease) is None
    refused = membership.join(store, KEYS, node("b"), settings, lease)
    assert refused is not None and refused.reason.endswith(f"node a of this run: {told}")


def test_an_outdated_measure_neither_refuses_nor_admits_anybody(store: MemoryStore) -> None:
    lease = store.grant(2)
    assert membership.join(store, KEYS, node("a"), SETTINGS, lease) is None
    now = store.get(KEYS.reference)
    assert now is not None
    larger = replace(SETTINGS, min_nodes=3, max_nodes=3)
    before = RunState(reference=Reference(node("z"), larger), reference_revision=now.modified - 1)
    refused = membership.join(store, KEYS, node("b"), larger, lease, before)
    assert refused is not None and "node a" in refused.reason, "measured by what holds now"
    assert membership.join(store, KEYS, node("b"), SETTINGS, lease, before) is None


def test_a_measure_that_was_seen_is_not_read_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(key: str) -> None:
        raise AssertionError(f"{key} is read")

    lease = store.grant(2)
    assert membership.join(store, KEYS, node("a"), SETTINGS, lease) is None
    value = store.get(KEYS.reference)
    assert value is not None
    seen = RunState(reference=decode(value.data, Reference), reference_revision=value.modified)
    with monkeypatch.context() as patched:
        patched.setattr(store, "get", read)
        assert membership.join(store, KEYS, node("b"), SETTINGS, lease, seen) is None
    assert store.get(KEYS.live("b")) is not None


def test_two_launchers_are_not_mixed(store: MemoryStore) -> None:
    lease = store.grant(2)
    mine, stock = Fingerprint(launcher="spotelastic"), Fingerprint(launcher="torchrun")
    assert membership.join(store, KEYS, node("a", mine), SETTINGS, lease) is None
    refused = membership.join(store, KEYS, node("b", stock), SETTINGS, lease)
    assert refused is not None
    assert refused.reason.endswith("started by torchrun here, spotelastic there")


def test_a_run_that_all_nodes_have_left_takes_its_measure_from_who_comes_next() -> None:
    now = 0.0
    store = MemoryStore(lambda: now)
    assert membership.join(store, KEYS, node("a"), SETTINGS, store.grant(2)) is None
    now = 10.0
    larger = replace(SETTINGS, min_nodes=3, max_nodes=3)
    lease = store.grant(2)
    assert membership.join(store, KEYS, node("b"), larger, lease) is None
    value = store.get(KEYS.settings)
    assert value is not None and decode(value.data, Settings) == larger
    refused = membership.join(store, KEYS, node("c"), SETTINGS, lease)
    assert refused is not None and "node b" in refused.reason


def test_a_node_rank_has_one_node_for_as_long_as_its_lease_lives() -> None:
    now = 0.0
    store = MemoryStore(lambda: now)
    first, second = replace(node("a"), node_rank=1), replace(node("b"), node_rank=1)
    assert membership.join(store, KEYS, first, SETTINGS, store.grant(2)) is None
    assert membership.join(store, KEYS, first, SETTINGS, store.grant(2)) is None, "itself, again"
    refused = membership.join(store, KEYS, second, SETTINGS, store.grant(2))
    assert refused is not None and refused.passing
    assert all(part in refused.reason for part in ("node b", "node a", "--node-rank 1"))
    assert store.get(KEYS.live("b")) is None
    now = 10.0
    lease = store.grant(2)
    assert membership.join(store, KEYS, second, SETTINGS, lease) is None
    membership.renew(store, KEYS, first, lease)
    holder = store.get(KEYS.rank(1))
    assert holder is not None and holder.data == b"b", "who comes back late takes it from nobody"


def test_registering_again_clears_what_an_earlier_life_left(store: MemoryStore) -> None:
    store.put(
        KEYS.drain("a"), encode(Drain("a", Notice(InterruptionKind.LEAVE, "a", "signal", 1.0, 1.0)))
    )
    assert membership.join(store, KEYS, node("a"), SETTINGS, store.grant(2)) is None
    assert store.get(KEYS.drain("a")) is None and store.get(KEYS.live("a")) is not None


def test_what_a_node_has_voted_stands_under_its_new_lease_too(store: MemoryStore) -> None:
    lost, vote = store.grant(2), Vote("a", "p", 40, confirmed=50)
    assert membership.join(store, KEYS, node("a"), SETTINGS, lost) is None
    store.put(KEYS.vote("a"), encode(vote), lost)
    store.revoke(lost)
    membership.renew(store, KEYS, node("a"), store.grant(2), vote)
    value = store.get(KEYS.vote("a"))
    assert value is not None and decode(value.data, Vote) == vote
