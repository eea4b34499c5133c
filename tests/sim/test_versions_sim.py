"""Clusters of two versions of spotelastic in virtual time: as many rounds as among equals."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest
from support.simulation.virtual_cluster import World
from support.store.later_versions import (
    NEW_WORD,
    OtherVersionsStore,
    todays,
    tomorrows,
    unreadable_rounds,
)
from support.store.memory_store import MemoryStore
from support.store.run_history import Recorder, violations

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.progress import Event
from spotelastic.store.codec import decode

SETTINGS = Settings(1, 4, snapshot_every=Interval(10), checkpoint_every=Interval(50))
NAMES = ("n0", "n1", "n2", "n3")

Version = Callable[[MemoryStore], Any]


def today(client: MemoryStore) -> MemoryStore:
    return client


newer = partial(OtherVersionsStore, writes=tomorrows, reads=todays)


def cannot_read(*causes: str) -> Version:
    """An older node, for which rounds of these causes have a field that it cannot make out."""
    reads = partial(unreadable_rounds, causes=causes)
    return partial(OtherVersionsStore, writes=lambda value: value, reads=reads)


def interrupted(others: Collection[str], other: Version = newer) -> World:
    """An arrival, a notice, a loss, a failed worker and an end, among nodes of which some are of
    another version."""
    world = World(SETTINGS, 700)
    history = Recorder()
    newer(world.store.client()).watch(world.keys.root, history)  # in the words of today

    def add(name: str) -> None:
        world.add(name, version=other if name in others else today)

    def went_on() -> None:
        start = world.step()
        world.run(lambda: world.step() > start + 15, 60)

    for name in NAMES[:3]:
        add(name)
    world.run(lambda: world.trains(*NAMES[:3]), 20)
    went_on()
    add("n3")
    world.run(lambda: world.trains(*NAMES), 30)
    went_on()
    world.nodes["n1"].notice(30)
    world.run(lambda: world.trains("n0", "n2", "n3"), 60)
    went_on()
    world.nodes["n2"].kill()
    world.run(lambda: world.trains("n0", "n3"), 30)
    went_on()
    round_ = world.round
    assert round_ is not None
    world.nodes["n3"].worker_exits(round_.incarnation, 1)
    world.run(lambda: len(world.started) > 4 and world.trains("n0", "n3"), 30)
    world.run(lambda: world.done, 300)
    assert violations(history.entries, world.keys.run) == []
    return world


def story(world: World) -> list[tuple[str, tuple[str, ...], str]]:
    """Every round that was written: why, with whom, in which phase."""
    return [
        (r.cause.removeprefix(NEW_WORD), tuple(m.node for m in r.members), r.phase)
        for r in world.rounds
    ]


def told(world: World) -> list[Event]:
    values, _ = world.store.range(world.keys.event())
    events = [decode(value.data, Event) for value in values]
    return [event for event in events if event.kind == "version"]


@pytest.fixture(scope="module")
def equals() -> World:
    return interrupted(())


@pytest.mark.parametrize(
    "others",
    [("n1", "n2", "n3"), ("n0", "n1", "n3"), ("n0",), ("n3",), ("n1",), NAMES],
    ids=["one older, holds", "one older", "one newer, holds", "a newer one joins",
         "a newer one has notice", "all newer"],
)  # fmt: skip
def test_two_versions_make_the_rounds_that_equals_make(
    equals: World, others: tuple[str, ...]
) -> None:
    world = interrupted(others)
    assert story(world) == story(equals)
    assert world.job.state == "succeeded"
    assert world.commit == equals.commit


def test_an_older_node_says_once_that_it_meets_words_that_it_does_not_know() -> None:
    world = interrupted(("n0", "n1", "n3"))
    assert any(r.cause.startswith(NEW_WORD) for r in world.started), "the newer ones hold"
    (event,) = told(world)
    assert event.node == "n2"
    assert NEW_WORD in event.message and "newer spotelastic" in event.message


def test_among_equals_nothing_is_said(equals: World) -> None:
    assert told(equals) == []


@pytest.mark.parametrize("causes", [("arrival",), ("arrival", "loss", "drain", "start")])
def test_a_node_that_cannot_read_a_round_is_left_out_once_and_says_so(
    causes: tuple[str, ...],
) -> None:
    """A version that has broken its promise costs this node, and one round; nothing turns."""
    world = World(SETTINGS, 700)
    for name in NAMES[:3]:
        world.add(name)
    world.run(lambda: world.trains(*NAMES[:3]), 20)
    world.add("n3", version=cannot_read(*causes))
    world.run(lambda: world.done, 300)
    assert world.violations() == []
    assert len(world.started) <= 2, world.story()
    assert all(r.member("n3") is None for r in world.started)
    (event,) = told(world)
    assert event.node == "n3" and "all/round" in event.message and "pause" in event.message


GARBAGE = [b"\xff\xfe", b'{"number":"x","kind":7}', b"\x78\x9cnothing"]
"""What is no value of any version, and what is one of none that this one knows."""


def spoil(world: World, key: str, data: bytes) -> bytes:
    """Returns what was there."""
    value = world.store.get(key)
    world.store.put(key, data, value.lease if value is not None else 0)
    return value.data if value is not None else b""


def training() -> World:
    world = World(SETTINGS, 700)
    for name in NAMES[:3]:
        world.add(name)
    world.run(lambda: world.trains(*NAMES[:3]), 20)
    world.run(lambda: world.step() > 15 and world.commit is not None, 60)
    return world


@pytest.mark.parametrize("garbage", GARBAGE, ids=str)
@pytest.mark.parametrize("name", ["round", "settings", "proposal", "job", "ending", "reference"])
def test_a_value_of_the_run_that_nobody_can_read_stops_no_training(
    name: str, garbage: bytes
) -> None:
    """What depends on it waits until it is mended."""
    world = training()
    key = getattr(world.keys, name)
    before = spoil(world, key, garbage)
    step, rounds = world.step(), len(world.started)
    world.nodes["n1"].notice(120)
    end = world.now + 15
    world.run(lambda: world.now >= end, 20)
    assert world.step() > step + 20 and len(world.started) == rounds, world.story()
    assert sorted(event.node for event in told(world)) == ["n0", "n1", "n2"]
    assert all(f"all/{name}: " in event.message for event in told(world))
    if before:
        world.store.put(key, before)
    else:
        world.store.delete(key)
    world.run(lambda: world.trains("n0", "n2"), 60)
    assert len(world.started) == rounds + 1, world.story()
    if name == "round":  # a node that was blind once comes back as any other, once it could read
        stays, goes = ("n0", "n2") if world.holder == "n0" else ("n2", "n0")
        away = world.nodes[goes].client
        away.cut()
        world.run(lambda: world.trains(stays), 60)
        away.heal()
        world.add("n3")
        world.run(lambda: world.trains("n0", "n2", "n3"), 60)


@pytest.mark.parametrize("garbage", GARBAGE, ids=str)
@pytest.mark.parametrize("branch", ["ack", "vote", "progress", "drain", "failure", "snapshots"])
def test_a_value_of_a_node_that_nobody_can_read_stops_nothing(branch: str, garbage: bytes) -> None:
    world = training()
    rounds = len(world.started)
    for node in NAMES[:3]:
        spoil(world, getattr(world.keys, branch)(node), garbage)
    spoil(world, world.keys.commit, garbage)
    spoil(world, world.keys.history(0), garbage)
    world.nodes["n1"].notice(60)
    world.run(lambda: world.trains("n0", "n2"), 60)
    assert len(world.started) == rounds + 1, world.story()
    holder = world.holder
    if branch != "drain":  # which the node that has notice has written anew
        assert holder in {event.node for event in told(world)}
    world.run(lambda: world.done, 300)
    assert world.job.state == "succeeded"
