"""Random faults where every node holds a part of the state, in virtual time: no save is lost."""

import itertools

import pytest
from support.draws import soaked
from support.simulation.virtual_cluster import World
from test_processes_random_sim import strike
from test_rounds_random_sim import KINDS, check

from spotelastic.model.job import Settings

SETTINGS = Settings(2, 4, max_restarts=100)
FAULTS = (*KINDS, "arrive", "daemon", "daemon", "zygote", "store", "lease", "bucket")
STEPS = 500


def absent(world: World) -> None:
    """The object store does not answer for some seconds."""
    world.bucket.answers = False
    world.after(world.random.uniform(0.5, 8.0), lambda: setattr(world.bucket, "answers", True))


def play(seed: int) -> World:
    """A job under twelve faults, until it has ended."""
    world = World(SETTINGS, STEPS, seed, sharded=True, gpus=True)
    world.upload = world.random.choice((0.2, 1.5, 4.0, 12.0))
    names = (f"n{i}" for i in itertools.count())

    def arrive() -> None:
        node = world.add(next(names), world.random.choice("abc"))
        node.finalizes = world.random.choice((0.0, 0.5, 5.0, 60.0))
        node.slowness = world.random.choice((1.0, 1.0, 1.3, 4.0))

    for _ in range(4):
        arrive()
    world.run(lambda: world.step() > 0, 30)
    for _ in range(12):
        world.passes(world.random.uniform(0.0, 4.0))
        if world.done:
            break
        kind = world.random.choice(FAULTS)
        if kind == "arrive" or not world.nodes:
            arrive()
        elif kind == "bucket":
            absent(world)
        else:
            strike(world, kind, world.random.choice(sorted(world.nodes)))
    for _ in range(4):
        arrive()
    world.run(lambda: world.done, 400)
    return world


@pytest.mark.parametrize("seed", [130, 170, 54, *soaked((180, 185, 203, 207, 234, 300))])
def test_no_save_is_lost(seed: int) -> None:
    """With each of these something was lost, or seemed to be."""
    world = play(seed)
    assert world.job.state == "succeeded"
    check(world)
    assert world.commit is not None and world.commit.step == STEPS
