"""Who is named for a round in which workers failed, in virtual time."""

from functools import partial

import pytest
from spotelastic_checkpoints.messages import Attached
from support.simulation.virtual_cluster import World

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.rendezvous.failures import restarts

SETTINGS = Settings(2, 4, snapshot_every=Interval(10), checkpoint_every=Interval(50))
LOST = "RuntimeError: Read error [10.0.0.1]:3228: Connection reset by peer"


@pytest.mark.parametrize("lag", [0.0, 0.02, 0.2], ids=lambda lag: f"told {lag:g} s later")
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "new processes"])
def test_the_node_whose_worker_was_killed_is_named_whoever_tells_first(
    in_place: bool, lag: float
) -> None:
    world = World(SETTINGS, 200, in_place=in_place)
    for name in ("n0", "n1", "n2"):
        world.add(name)
    world.run(lambda: world.step() > 24, 60)
    current = world.started[-1].incarnation
    for name in ("n0", "n2"):
        world.nodes[name].message = LOST
    if not in_place:
        world.nodes["n0"].worker_exits(current, 1)
    world.nodes["n1"].message = "ended by SIGKILL"
    world.nodes["n1"].lag = max(world.nodes["n1"].lag, lag)
    world.nodes["n1"].worker_exits(current, -9)
    world.run(lambda: len(world.started) > 1, 60)
    second = world.started[1]
    assert (second.cause, second.nodes) == ("worker", ("n1",))
    assert second.reason.startswith("a worker failed on n1")
    assert world.violations() == []


def test_the_end_of_a_job_names_the_worker_that_failed() -> None:
    world = World(Settings(2, 2, max_restarts=0), 200)
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.step() > 4, 60)
    current = world.started[-1].incarnation
    world.nodes["n0"].message = LOST
    world.nodes["n0"].worker_exits(current, 1)
    world.nodes["n1"].message = "ended by SIGKILL"
    world.after(0.3, lambda: world.nodes["n1"].worker_exits(current, -9))
    world.run(lambda: world.done, 60)
    assert world.job.failure is not None
    assert (world.job.failure.node, world.job.failure.message) == ("n1", "ended by SIGKILL")
    assert world.violations() == []


def goes_on_or_ends(world: World, rounds: int) -> bool:
    return world.done or len(world.started) > rounds


SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied"


def before_a_first_step(slow: float, attached: bool) -> World:
    """A world whose script raises the same twice, each time after so many seconds."""
    world = World(Settings(2, 2, max_restarts=100), 400, in_place=True)
    world.starting = 1000.0
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: len(world.started) == 1, 20)
    node = world.nodes["n0"]
    node.message = SHAPES
    for count in (1, 2):
        world.run(lambda: node.local.workers is not None and bool(node.processes.ranks), 5)
        if attached:
            node.post(Attached(0))
        world.passes(slow)
        assert len(world.started) == count and not world.done
        node.worker_exits(world.started[-1].incarnation, 1)
        world.run(partial(goes_on_or_ends, world, count), 10)
    return world


@pytest.mark.parametrize(
    ("slow", "attached"), [(0.0, False), (40.0, False), (400.0, True)], ids=str
)
def test_a_mistake_that_comes_again_before_a_first_step_ends_the_job(
    slow: float, attached: bool
) -> None:
    world = before_a_first_step(slow, attached)
    assert world.job.state == "failed"
    assert world.job.reason == f"{SHAPES}: it came 2 times in a row before the first step"


def test_a_script_that_reports_no_steps_may_have_made_some() -> None:
    assert not before_a_first_step(400.0, attached=False).done


@pytest.mark.parametrize(
    "message",
    [LOST, "OSError: stale file handle", "ConnectionError: no answer", "RuntimeError: NCCL error"],
)
def test_what_may_pass_does_not(message: str) -> None:
    world = World(Settings(2, 2, max_restarts=100), 400)
    world.starting = 1000.0
    for name in ("n0", "n1"):
        world.add(name)
    for count in range(1, restarts.CRASH_LOOP - 4):
        world.begins(count, 60)
        world.run(lambda: world.nodes["n0"].local.workers is not None, 5)
        world.nodes["n0"].message = message
        world.nodes["n0"].worker_exits(world.started[-1].incarnation, 1)
    world.run(lambda: len(world.started) == restarts.CRASH_LOOP - 4, 60)
    assert not world.done
