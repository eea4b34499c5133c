"""Saves that are on their way when the next round claims the storage, in virtual time.

They complete below the epoch of the round before (docs/explanation/protocols.md, Commits).
"""

from spotelastic_checkpoints.types import Commit
from support.simulation.virtual_cluster import World
from test_rounds_sim import SETTINGS, check_invariants, cluster


def that_uploads(seconds: float, slowness: float = 1.0) -> World:
    """Three nodes with a part of the state each. Step 50 has been sealed, and takes so long to
    upload, on n1 `slowness` times as long. An earlier step is committed.
    """
    world = cluster(3, SETTINGS, sharded=True)
    world.run(lambda: world.step() > 40 and world.commit is not None, 60)
    assert world.commit == Commit(1, 10)
    world.upload = seconds
    world.nodes["n1"].slowness = slowness
    world.run(lambda: world.step() > 52, 60)
    return world


def test_a_save_that_was_on_its_way_is_committed_by_the_next_round() -> None:
    world = that_uploads(4.0)
    world.nodes["n1"].worker_exits(world.started[-1].incarnation, 1)
    world.run(lambda: len(world.started) == 2, 10)
    after = world.started[-1]
    assert (after.epoch, after.resume.kind, after.resume.step) == (2, "memory", 50)
    assert world.commit == Commit(1, 10), "it is still on its way"
    world.run(lambda: world.commit != Commit(1, 10), 10)
    assert world.commit == Commit(1, 50)
    world.run(lambda: world.done, 100)
    check_invariants(world)


def test_a_save_that_completes_while_a_round_waits_for_nodes_is_what_it_resumes_from() -> None:
    """Nobody holds all of it in memory any more when the round starts."""
    world = that_uploads(2.0)
    world.nodes["n1"].kill()
    world.run(lambda: len(world.started) == 2, 20)
    assert world.started[-1].resume.step == 10, "a part of it was on the lost node alone"
    world = that_uploads(2.0)
    for name in ("n1", "n2"):
        world.nodes[name].leave()
    world.run(lambda: set(world.nodes) == {"n0"}, 30)
    world.add("n3")
    world.run(lambda: len(world.started) == 2, 20)
    before, after = world.started
    assert after.resume.kind == "store"
    assert world.lost_steps(before, after) == 0
    world.run(lambda: world.done, 100)
    check_invariants(world)


def test_a_save_of_another_history_is_not_committed_though_it_completes() -> None:
    """A node that is cut off uploads its part, while the others go back without it."""
    world = that_uploads(1.0, slowness=7.0)
    world.nodes["n1"].client.cut()
    world.run(lambda: len(world.started) == 2, 20)
    after = world.started[-1]
    assert (after.resume.kind, after.resume.step) == ("store", 10)
    seen = {world.commit}

    def commits() -> bool:
        seen.add(world.commit)
        return world.commit is not None and world.commit.epoch == after.epoch

    world.run(commits, 60)
    assert Commit(1, 50) in world.bucket.stored().complete
    assert Commit(1, 50) not in seen
    world.nodes["n1"].client.heal()
    world.run(lambda: world.done, 100)
    check_invariants(world)
