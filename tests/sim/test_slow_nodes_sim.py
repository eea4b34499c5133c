"""Clusters in virtual time with a node that keeps the others waiting: it is named, and cleared."""

from dataclasses import replace

from support.simulation.virtual_cluster import World
from test_rounds_sim import SETTINGS

from spotelastic.model.progress import Event, SlowNode
from spotelastic.store.codec import decode

NODES = ("n0", "n1", "n2", "n3")
AFTER = 30.0


def trains(**own: float) -> World:
    """Four nodes that train, in steps of a second. `own`: seconds in which a node works."""
    world = World(replace(SETTINGS, min_nodes=2, max_nodes=4, slow_after=AFTER), 2000)
    world.step_time = 1.0
    world.own.update(own)
    for name in NODES:
        world.add(name)
    world.run(lambda: world.trains(*NODES), 60)
    return world


def events(world: World, kind: str) -> list[str]:
    """The nodes that events of a kind are about."""
    found = (decode(each.data, Event) for each in world.store.range(world.keys.event())[0])
    return [event.node for event in found if event.kind == kind]


def slow(world: World) -> set[str]:
    found = world.store.range(world.keys.slow())[0]
    return {decode(each.data, SlowNode).node for each in found}


def passes(world: World, seconds: float) -> None:
    end = world.now + seconds
    world.run(lambda: world.now >= end, seconds + 10)


def test_a_node_that_keeps_the_others_waiting_is_named_once_and_cleared_once() -> None:
    world = trains(n2=0.95)
    world.run(lambda: slow(world) == {"n2"}, 2 * AFTER)
    passes(world, 3 * AFTER)
    assert events(world, "slow") == ["n2"]
    world.own.clear()
    world.run(lambda: not slow(world), 2 * AFTER)
    passes(world, 3 * AFTER)
    assert (events(world, "slow"), events(world, "slow-over")) == (["n2"], ["n2"])
    assert len(world.started) == 1, "training is not disturbed by it"
    assert world.violations() == []


def test_nodes_that_take_equally_long_are_not_named() -> None:
    world = trains(n0=0.45, n3=0.55)
    passes(world, 6 * AFTER)
    assert events(world, "slow") == []


def test_the_next_holder_knows_who_was_named() -> None:
    world = trains(n2=0.95)
    world.run(lambda: slow(world) == {"n2"}, 2 * AFTER)
    holder = world.holder if world.holder != "n2" else "n0"
    world.nodes[holder].kill()
    world.run(lambda: world.holder not in ("", holder), 60)
    passes(world, 4 * AFTER)
    assert slow(world) == {"n2"}
    assert (events(world, "slow"), events(world, "slow-over")) == (["n2"], [])


def test_a_named_node_that_is_lost_is_slow_no_longer() -> None:
    world = trains(n2=0.95)
    world.run(lambda: slow(world) == {"n2"}, 2 * AFTER)
    world.nodes["n2"].kill()
    world.run(lambda: not slow(world), 30)
    passes(world, 3 * AFTER)
    assert (events(world, "slow"), events(world, "slow-over")) == (["n2"], ["n2"])
