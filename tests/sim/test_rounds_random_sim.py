"""Random interruptions in virtual time: the job ends well, and no rule is ever broken."""

import itertools
from dataclasses import replace

import pytest
from support.draws import soaked
from support.simulation.virtual_cluster import World
from support.simulation.virtual_training import NETWORK

from spotelastic.model.gpu import GpuFault
from spotelastic.model.job import RankPolicy, Settings

SETTINGS = Settings(2, 4, max_restarts=100)
KINDS = ("kill", "notice", "leave", "worker", "ill", "slow", "cut", "arrive")
LOST = GpuFault("Xid 79, the GPU has fallen off the bus", "kernel", "xid 79")


def check(world: World) -> None:
    assert world.violations() == []
    starts = world.started
    assert [r.number for r in starts] == list(range(1, len(starts) + 1)), "one line of history"
    for before, after in itertools.pairwise(starts):
        assert after.parent == before.incarnation


def interrupt(world: World, kind: str, name: str) -> None:
    node = world.nodes[name]
    if kind == "kill" and len(world.nodes) > 1:
        node.kill()
    elif kind == "notice" and len(world.nodes) > 1:
        node.notice(world.random.uniform(1, 20))
    elif kind == "leave" and len(world.nodes) > 1:
        node.leave()
    elif kind == "ill" and len(world.nodes) > 1:
        node.fall_ill(LOST)
    elif kind == "worker" and world.round is not None:
        node.worker_exits(world.round.incarnation, 1)
    elif kind == "slow":
        node.lag = world.random.uniform(0.1, 1.5)
        world.after(world.random.uniform(0.5, 6), lambda: setattr(node, "lag", NETWORK))
    elif kind == "cut":
        node.client.cut()
        world.after(world.random.uniform(0.1, 6), node.client.heal)


def pinned_ranks_hold(world: World) -> None:
    """In every started round, a member with a node rank that there is room for has it."""
    for round_ in world.started:
        for member in round_.members:
            rank = world.ranks[member.node]
            if rank is not None and rank < len(round_.members):
                assert member.slot == rank, round_


def nodes_on_demand_come_first(world: World) -> None:
    """In every started round of some, and both kinds of nodes are in rounds together."""
    kinds = [
        [member.node in world.on_demand for member in round_.members] for round_ in world.started
    ]
    assert all(each == sorted(each, reverse=True) for each in kinds)
    assert any(set(each) == {True, False} for each in kinds)


@pytest.mark.parametrize("seed", [*range(7), *soaked(range(7, 60))])
def test_random_interruptions_always_end_in_success(seed: int) -> None:
    """Kills, notices, departures, failures, arrivals, stalls, cuts and sick GPUs, below min too."""
    policies: tuple[RankPolicy, ...] = ("pinned", "on-demand-first", "stable")
    policy = policies[seed % 3]
    world = World(replace(SETTINGS, rank_policy=policy), 600, seed, gpus=True)
    names = (f"n{i}" for i in itertools.count())

    def arrive() -> None:
        taken = {node.rank for node in world.nodes.values()}
        free = [rank for rank in range(4) if rank not in taken]
        rank = world.random.choice([None, *free]) if policy == "pinned" else None
        spot = policy != "on-demand-first" or world.random.random() < 0.6
        world.add(next(names), world.random.choice("abc"), rank, spot=spot)

    for _ in range(4):
        arrive()
    world.run(lambda: world.step() > 0, 30)
    for _ in range(20):
        world.passes(world.random.uniform(0.0, 4.0))
        if world.done:
            break
        kind = world.random.choice([*KINDS, "arrive", "arrive"])
        if kind == "arrive" or not world.nodes:
            arrive()
        else:
            interrupt(world, kind, world.random.choice(sorted(world.nodes)))
    for _ in range(4):
        arrive()
    world.run(lambda: world.done, 400)
    assert world.job.state == "succeeded"
    check(world)
    if policy == "pinned":
        pinned_ranks_hold(world)
    elif policy == "on-demand-first":
        nodes_on_demand_come_first(world)
