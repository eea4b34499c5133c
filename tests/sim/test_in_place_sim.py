"""Simulates recovery in place, in virtual time: whoever survives keeps process and state."""

import pytest
from support.virtual import World

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings

EVERY = 10
SETTINGS = Settings(2, 4, snapshot_every=Interval(EVERY), checkpoint_every=Interval(50))


def cluster(count: int, settings: Settings = SETTINGS, steps: int = 300, seed: int = 0) -> World:
    world = World(settings, steps, seed, in_place=True)
    for index in range(count):
        world.add(f"n{index}", zone="abc"[index % 3])
    world.run(lambda: world.trains(*(f"n{i}" for i in range(count))), 20)
    return world


def finish(world: World) -> None:
    world.run(lambda: world.done, 300)
    assert world.job.state == "succeeded"
    assert world.violations() == []


def test_nodes_that_come_together_form_one_round() -> None:
    world = cluster(4)
    finish(world)
    assert len(world.started) == 1


@pytest.mark.parametrize("victim", ["n0", "n1"])
def test_a_lost_node_costs_no_step(victim: str) -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    world.nodes[victim].kill()
    others = sorted({"n0", "n1", "n2"} - {victim})
    world.run(lambda: world.trains(*others), SETTINGS.lease + 3)
    first, second = world.started
    assert second.in_place == "keep"
    assert world.lost_steps(first, second) <= 0
    finish(world)
