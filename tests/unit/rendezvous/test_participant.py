"""A node whose workers torchrun starts: how long it waits for a place."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.memory_store import MemoryStore
from support.patience import PATIENT

from spotelastic.clock import unbroken
from spotelastic.errors import Unavailable, UsageError
from spotelastic.model.job import Job, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.participant import Participant
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys

KEYS = Keys("r")
SETTINGS = Settings(1, 2)
MEMBERS = tuple(Member(name, f"inc-{name}", slot, "", "", 1) for slot, name in enumerate("ab"))
FULL = Round(1, "r1", "started", MEMBERS, "start", "", store="10.0.0.1:5")
DEADLINE = 3600 + 600.0
"""Ten minutes after the clock is looked at first."""


class Clock:
    """An hour passes between one look and the next; `looked` is set by the second."""

    def __init__(self) -> None:
        self.now, self.looks, self.looked = 0.0, 0, threading.Event()

    def __call__(self) -> float:
        self.now += 3600
        self.looks += 1
        if self.looks == 2:
            self.looked.set()
        return self.now


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(unbroken)
    store.put(KEYS.settings, encode(SETTINGS))
    store.put(KEYS.holder, b"a")
    return store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spare(store: MemoryStore, clock: Clock) -> Iterator[Participant]:
    node = Node("c", "inc-c", "127.0.0.1", "", Fingerprint("3.11", "2.13", launcher="torchrun"))
    made = Participant(store.client(), "r", node, SETTINGS, lambda round_: "", clock)
    yield made
    made.leave()


def test_a_spare_waits_while_the_round_is_full(
    store: MemoryStore, clock: Clock, spare: Participant
) -> None:
    store.put(KEYS.round, encode(FULL))
    with ThreadPoolExecutor(1) as threads:
        joined = threads.submit(spare.join, "", DEADLINE)
        assert clock.looked.wait(PATIENT)
        store.put(KEYS.job, encode(Job("succeeded", 0.0)))
        assert joined.result(PATIENT) is None


def test_a_node_that_has_a_place_gives_up_at_the_deadline(
    store: MemoryStore, spare: Participant
) -> None:
    store.put(KEYS.round, encode(Round(1, "r1", "started", MEMBERS[:1], "start", "")))
    with pytest.raises(Unavailable, match="in time"):
        spare.join("", DEADLINE)


def test_a_node_that_cannot_read_a_round_ends_with_a_line_instead_of_coming_and_going(
    store: MemoryStore, spare: Participant
) -> None:
    """It is left out by a round that it can read, after one that it could not."""
    unreadable = encode(FULL).replace(b'"pause":0.0', b'"pause":"a while"')
    store.put(KEYS.round, unreadable)
    store.put(KEYS.round, encode(replace(FULL, missed=("inc-c",))))
    with pytest.raises(UsageError, match=r"node c cannot read .*all/round: .*pause"):
        spare.join("", DEADLINE)
