"""Clusters in virtual time whose steps, agents or nodes are slow: nothing is lost or left out."""

import itertools
from dataclasses import replace

import pytest
from support.simulation.virtual_cluster import World
from test_rounds_sim import EVERY, SETTINGS, cluster, finish

from spotelastic.model.job import Settings


@pytest.mark.parametrize("step_time", [2.5, 6.0, 10.0])
def test_steps_that_take_long_are_waited_for_when_nodes_come_and_go(step_time: float) -> None:
    world = World(SETTINGS, 400)
    world.step_time = step_time
    for name in ("n0", "n1", "n2"):
        world.add(name)
    world.run(lambda: world.step() == 5, 120)
    world.add("n3")
    world.run(lambda: world.trains("n0", "n1", "n2", "n3"), 120)
    world.run(lambda: world.step() % EVERY == 5, 200)
    world.nodes["n1"].notice(120)
    world.run(lambda: world.trains("n0", "n2", "n3"), 120)
    world.run(lambda: world.step() % EVERY == 5, 200)
    world.nodes["n3"].leave()
    world.run(lambda: world.trains("n0", "n2"), 120)
    for before, after in itertools.pairwise(world.started):
        assert world.lost_steps(before, after) == 0, after.reason
    assert [round_.cause for round_ in world.started] == ["start", "arrival", "drain", "drain"]
    assert world.violations() == []


def test_agents_that_hardly_get_to_run_agree_all_the_same() -> None:
    world = cluster(3, replace(SETTINGS, lease=10, seen_within=5))
    world.run(lambda: world.step() > 25, 60)
    for node in world.nodes.values():
        node.lag = 0.8
    world.nodes["n2"].notice(60)
    world.run(lambda: world.trains("n0", "n1"), 55)
    first, second = world.started
    assert second.cause == "drain" and world.lost_steps(first, second) == 0
    finish(world)


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("lag", [0.35, 1.0, 2.0])
def test_a_node_that_is_always_slow_to_answer_takes_part_all_the_same(
    least: int, lag: float
) -> None:
    world = World(Settings(least, 2), 400)
    world.add("n0")
    world.run(lambda: world.holder == "n0", 20)
    world.add("n1").lag = lag
    world.run(lambda: world.trains("n0", "n1"), 90)
    assert len(world.started) <= 4
    assert len(world.rounds) < 30
    world.run(lambda: world.done, 300)
    assert world.violations() == []
