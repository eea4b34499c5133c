"""Random strikes at workers that can rest, in virtual time: the job ends well, by all rules.

`support.simulation.virtual_ranks` checks the rules of states in each run, and
`support.store.run_history` those of rounds.
"""

import itertools
from dataclasses import replace

import pytest
from support.simulation.virtual_cluster import World
from support.simulation.virtual_node import SimNode
from support.simulation.virtual_ranks import WORDS, Rank
from test_processes_random_sim import strike

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings

SETTINGS = Settings(
    2, 4, max_restarts=1000, snapshot_every=Interval(10), checkpoint_every=Interval(50)
)
KINDS = (
    *("kill", "notice", "leave", "worker", "slow", "cut", "daemon", "zygote", "store", "lease"),
    *("freeze", "freeze worker", "arrive", "arrive"),
)
STEPS = 400


def befall(world: World, kind: str, node: SimNode) -> None:
    seconds, ranks = world.random.uniform(0.1, 6.0), node.processes.ranks
    rank = world.random.choice(ranks) if ranks else None
    if kind == "worker" and rank is not None:
        rank.exits(world.random.choice((1, -9)))
    elif kind == "freeze":
        node.freeze(seconds)
    elif kind == "freeze worker" and rank is not None:
        rank.freeze()
        world.after(seconds, rank.thaw)
    elif kind not in ("worker", "freeze worker"):
        strike(world, kind, node.name)


def wait(world: World) -> None:
    """For some time, or until a rank comes to a word."""
    goal, found = world.now + world.random.uniform(0.0, 4.0), []
    word = world.random.choice((*WORDS, ""))

    def note(rank: Rank) -> None:
        if rank.where == word:
            found.append(rank)

    world.after(goal - world.now, lambda: None)
    world.at_word = note
    world.run(lambda: bool(found) or world.now >= goal or world.done, 10)
    world.at_word = None


@pytest.mark.parametrize(
    ("seed", "sharded"),
    [
        *((seed, False) for seed in (0, 1, 3)),
        *((seed, True) for seed in (5, 304)),
        *(pytest.param(seed, seed == 6, marks=pytest.mark.soak) for seed in (2, 4, 6)),
    ],
)
def test_random_strikes_always_end_in_success(seed: int, sharded: bool) -> None:
    settings = replace(SETTINGS, rank_policy="pinned" if seed % 3 == 0 else "stable")
    settings = replace(settings, stall_timeout=4.0 if seed % 4 == 0 else 0.0)
    settings = replace(settings, workers=2 if seed % 2 == 0 else 1)
    world = World(settings, STEPS, seed, in_place=True, sharded=sharded)
    names = (f"n{number}" for number in itertools.count())

    def arrive() -> None:
        node = world.add(next(names), world.random.choice("abc"))
        node.finalizes = world.random.choice((0.0, 0.0, 0.5, 5.0))
        node.can_rest = world.random.random() < 0.9

    for _ in range(4):
        arrive()
    world.run(lambda: world.step() > 0, 30)
    for _ in range(12):
        wait(world)
        if world.done:
            break
        kind = world.random.choice(KINDS)
        if kind == "arrive" or not world.nodes:
            arrive()
        else:
            befall(world, kind, world.nodes[world.random.choice(sorted(world.nodes))])
    for _ in range(4):
        arrive()
    world.run(lambda: world.done, 600)
    assert world.job.state == "succeeded"
    assert world.violations() == []
