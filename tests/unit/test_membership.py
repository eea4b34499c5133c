"""The writes of rendezvous/membership.py, on the store in memory."""

import pytest

from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.model.round import Commit, Member, Round, RoundRecord
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.rounds import CloseRound, CompleteHistory, WriteRound
from spotelastic.rendezvous.view import Seen
from spotelastic.store.codec import decode, encode
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys
from spotelastic.store.memory import MemoryStore
from spotelastic.store.port import Compare

KEYS = Keys("r")
ROUND = Round(1, "one", "proposed", (Member("a", "a1", 0, "127.0.0.1", "z", 1),), "start", "x")


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
    outcome = membership.perform(store, KEYS, Seen(), [WriteRound(ROUND)], mine, 1.0)
    assert not outcome.succeeded
    assert store.get(KEYS.round) is None and events(store) == []


def test_a_decision_on_an_outdated_round_writes_nothing(store: MemoryStore) -> None:
    mine = holding(store)
    assert membership.perform(store, KEYS, Seen(), [WriteRound(ROUND)], mine, 1.0).succeeded
    assert not membership.perform(store, KEYS, Seen(), [WriteRound(ROUND)], mine, 1.0).succeeded


def test_a_round_that_ends_before_its_first_step_has_executed_none(store: MemoryStore) -> None:
    mine = holding(store)
    actions = [CloseRound(ROUND), CompleteHistory(1, 0.0, 0, 0.0)]
    membership.perform(store, KEYS, Seen(), actions, mine, 5.0)
    value = store.get(KEYS.history(1))
    assert value is not None
    assert decode(value.data, RoundRecord).last_step == ROUND.resume.step


def test_the_deadline_joins_a_drain_that_was_written_without_one(store: MemoryStore) -> None:
    by_queue = Notice("notice", "a", "sqs", 10.0, 11.0)
    by_imds = Notice("notice", "a", "imds", 10.5, 10.9, 130.0)
    membership.write_drain(store, KEYS, Drain("a", by_queue))
    membership.write_drain(store, KEYS, Drain("a", by_imds))
    membership.write_drain(store, KEYS, Drain("a", by_queue))
    value = store.get(KEYS.drain("a"))
    assert value is not None
    notice = decode(value.data, Drain).notice
    assert (notice.source, notice.deadline) == ("sqs", 130.0)


def test_a_commit_is_told_once_by_whoever_is_first(store: MemoryStore) -> None:
    for node in ("a", "b"):
        membership.tell_commit(store, KEYS, node, Commit(1, 50), 7.0)
    membership.tell_commit(store, KEYS, "b", Commit(2, 60), 8.0)
    membership.tell_commit(store, KEYS, "a", Commit(1, 55), 8.5)
    assert [(e.node, e.data["step"]) for e in events(store)] == [("a", 50), ("b", 60)]


def test_a_node_that_does_not_match_is_refused_with_both_sides(store: MemoryStore) -> None:
    first = Node("a", "1", "", "", Fingerprint(torch="2.13", workers=2))
    other = Node("b", "1", "", "", Fingerprint(torch="2.12", workers=2))
    assert membership.refusal(store, KEYS, first) is None
    refused = membership.refusal(store, KEYS, other)
    assert refused is not None
    assert all(part in refused for part in ("node b", "node a", "2.12", "2.13"))


def test_registering_again_clears_what_an_earlier_life_left(store: MemoryStore) -> None:
    node = Node("a", "1", "", "", Fingerprint())
    store.put(KEYS.drain("a"), encode(Drain("a", Notice("leave", "a", "signal", 1.0, 1.0))))
    membership.register(store, KEYS, node, store.grant(2))
    assert store.get(KEYS.drain("a")) is None and store.get(KEYS.live("a")) is not None
