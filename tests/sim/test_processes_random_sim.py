"""Random ends of a node's own processes, and of its lease, in virtual time: the job ends well."""

import pytest
from support.draws import soaked
from support.simulation.virtual_cluster import World
from test_rounds_random_sim import check, interrupt

from spotelastic.model.job import Settings

SETTINGS = Settings(2, 4, max_restarts=100)


def strike(world: World, kind: str, name: str) -> None:
    node = world.nodes[name]
    match kind:
        case "daemon":
            node.processes.daemon_dies()
        case "zygote":
            node.processes.zygote_dies()
        case "store":
            node.processes.store_dies()
        case "lease":
            world.store.revoke(node.lease)
        case _:
            interrupt(world, kind, name)


@pytest.mark.parametrize("seed", [*range(3), *soaked(range(3, 15))])
def test_random_ends_of_processes_always_end_in_success(seed: int) -> None:
    world = World(SETTINGS, 500, seed)
    for number in range(4):
        node = world.add(f"n{number}", world.random.choice("abc"))
        node.finalizes = world.random.choice((0.0, 0.5, 5.0, 60.0))
    world.run(lambda: world.step() > 0, 30)
    kinds = ("daemon", "daemon", "zygote", "store", "lease", "worker", "cut")
    for _ in range(12):
        world.passes(world.random.uniform(0.0, 4.0))
        if world.done:
            break
        strike(world, world.random.choice(kinds), world.random.choice(sorted(world.nodes)))
    world.run(lambda: world.done, 400)
    assert world.job.state == "succeeded"
    check(world)


def test_nodes_whose_etcd_was_emptied_join_anew_and_go_on_from_the_newest_commit() -> None:
    world = World(SETTINGS, 400)
    for name in ("n0", "n1", "n2"):
        world.add(name)
    world.run(lambda: world.commit is not None and world.step() > world.commit.step + 5, 60)
    before, kept = world.started[-1], world.commit
    assert kept is not None
    for value in world.store.range(world.keys.root)[0]:
        world.store.delete(value.key)
    world.run(
        lambda: (
            world.round is not None
            and world.round.phase == "started"
            and world.round.incarnation != before.incarnation
        ),
        60,
    )
    world.run(lambda: world.trains("n0", "n1", "n2"), 60)
    first = world.started[1]
    assert (first.number, first.parent, first.resume.kind) == (1, "", "store")
    assert first.resume.step >= kept.step
    world.run(lambda: world.done, 300)
    assert world.job.state == "succeeded"
