"""A node that comes while a script comes to its end, in virtual time."""

from spotelastic_checkpoints.messages import Attached, WorkerLeft
from support.simulation.virtual_cluster import World

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings


def cluster(steps: int) -> World:
    settings = Settings(2, 4, snapshot_every=Interval(10), checkpoint_every=Interval(50))
    world = World(settings, steps)
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.trains("n0", "n1"), 20)
    return world


def has_left(world: World, name: str) -> bool:
    workers = world.nodes[name].local.workers
    return workers is not None and workers.left


def test_a_node_that_comes_while_the_script_ends_has_nothing_done_twice() -> None:
    """What stands after the loop, as an evaluation, is not begun again."""
    world = cluster(50)
    world.ending = 45.0
    workers = [world.nodes[name].local.workers for name in ("n0", "n1")]
    assert all(each is not None and not each.left for each in workers)
    world.run(lambda: all(has_left(world, name) for name in ("n0", "n1")), 60)
    world.add("n2")
    world.run(lambda: world.done, 60)
    assert world.job.state == "succeeded" and len(world.started) == 1
    world.run(lambda: world.nodes["n2"].exit_code is not None, 10)
    assert world.nodes["n2"].exit_code == 0


def test_a_node_that_comes_joins_when_the_script_has_another_checkpointer() -> None:
    world = cluster(400)
    for node in world.nodes.values():
        node.post(WorkerLeft(0, 0, clean=True))
    world.add("n2")
    world.passes(10)
    assert len(world.started) == 1
    for name in ("n0", "n1"):
        world.nodes[name].post(Attached(0))
    world.run(lambda: world.trains("n0", "n1", "n2"), 60)
    assert world.lost_steps(*world.started) == 0
    world.run(lambda: world.done, 300)
    assert world.job.state == "succeeded" and world.violations() == []
