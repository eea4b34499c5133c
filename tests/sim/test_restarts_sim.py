"""A script that fails again and again, in virtual time: pauses, the budget, the crash loop."""

from collections.abc import Callable
from functools import partial

import pytest
from support.simulation.virtual_cluster import World

from spotelastic.model.job import Settings
from spotelastic.model.progress import Progress
from spotelastic.rendezvous.failures import restarts
from spotelastic.store.codec import encode


def crashing(max_restarts: int, nodes: int = 2) -> World:
    world = World(Settings(2, 4, max_restarts=max_restarts), 400)
    for index in range(nodes):
        world.add(f"n{index}")
    world.run(lambda: len(world.started) == 1, 20)
    return world


def crash(world: World, until: Callable[[], bool], message: str = "") -> float:
    """A worker fails before its first step; the seconds until the condition holds."""
    node, current = world.nodes["n0"], world.started[-1].incarnation
    world.run(lambda: node.local.workers is not None and node.local.workers.round == current, 5)
    failed_at = world.now
    node.message = message
    node.worker_exits(current, 1)
    world.run(until, restarts.LONGEST + 5)
    return world.now - failed_at


def restart(world: World, message: str = "") -> float:
    count = len(world.started)
    return crash(world, lambda: len(world.started) > count, message)


def goes_on_or_ends(world: World, rounds: int) -> bool:
    return world.done or len(world.started) > rounds


def test_the_first_restart_is_at_once_and_the_next_ones_wait_ever_longer() -> None:
    world = crashing(max_restarts=100)
    waits = [round(restart(world, f"failure {number}")) for number in range(8)]
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30]
    paused = [r for r in world.rounds if r.pause and r.phase == "proposed"]
    assert "n0: 2 nodes; 3 times in a row: starts in 2 s" in paused[1].reason
    assert sum("starts in 2 s" in line for _, line in world.said) == 2, "each node says why"
    assert world.violations() == []


def test_something_new_that_was_saved_begins_the_count_anew() -> None:
    world = crashing(max_restarts=100)
    for _ in range(3):
        restart(world)
    world.run(lambda: world.step() > 12, 30)
    assert [round(restart(world)) for _ in range(3)] == [0, 0, 1]
    assert world.violations() == []


def test_a_pause_holds_up_no_node_that_comes_or_goes() -> None:
    world = crashing(max_restarts=100, nodes=3)
    for number in range(5):
        restart(world, f"failure {number}")
    crash(world, lambda: world.round is not None and world.round.pause > 0)
    world.nodes["n2"].kill()
    world.run(lambda: world.round is not None and world.round.phase == "started", 4)
    assert len(world.started[-1].members) == 2

    for number in range(5):
        restart(world, f"failure {number}")
    crash(world, lambda: world.round is not None and world.round.pause > 0)
    world.add("n3")
    world.run(lambda: world.trains("n0", "n1", "n3"), 6)
    assert world.violations() == []


def test_the_budget_ends_the_job_whatever_the_pauses() -> None:
    world = crashing(max_restarts=2)
    for number in range(2):
        restart(world, f"failure {number}")
    crash(world, lambda: world.done)
    assert len(world.started) == 3, "the first run and two restarts"
    assert world.job.reason == "the script failed 3 times, --max-restarts 2"


def test_a_node_that_answers_late_is_no_excuse_for_a_script_that_fails() -> None:
    """It seems lost at first, as a machine that vanished does; then it comes back."""
    world = World(Settings(1, 2, max_restarts=2), 400)
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.trains("n0", "n1"), 20)
    failures, prompt = 0, world.holder
    slow = world.nodes["n1" if prompt == "n0" else "n0"]
    while not world.done and failures < 10:
        slow.lag = 0.5
        node = world.nodes[prompt]
        node.message, failures = f"failure {failures}", failures + 1
        node.worker_exits(world.started[-1].incarnation, 1)
        world.run(partial(goes_on_or_ends, world, len(world.started)), 40)
        slow.lag = 0.01
        world.run(lambda: world.done or world.trains("n0", "n1"), 40)
    assert "the script failed 3 times, --max-restarts 2" in world.job.reason
    assert world.violations() == []


def test_the_same_failure_without_end_ends_the_job_before_its_budget() -> None:
    world = crashing(max_restarts=100)
    for _ in range(restarts.CRASH_LOOP - 1):
        restart(world, "No module named colum")
    crash(world, lambda: world.done, "No module named colum")
    assert world.job.state == "failed" and "8 times in a row in the same way" in world.job.reason
    assert world.job.failure is not None
    assert world.job.failure.message == "No module named colum"
    assert world.violations() == []


def test_a_node_that_comes_in_a_pause_does_not_hide_that_the_same_failure_comes_again() -> None:
    """It ends the pause, and may help. But only a new step ends the count."""
    world, message = crashing(max_restarts=100), "No module named colum"
    for _ in range(5):
        restart(world, message)
    crash(world, lambda: world.round is not None and world.round.pause > 0, message)
    world.add("n2")
    world.run(lambda: len(world.started) > 6, 6)
    assert [member.node for member in world.started[-1].members] == ["n0", "n1", "n2"]
    waits = [round(restart(world, message)) for _ in range(restarts.CRASH_LOOP - 7)]
    assert waits == [1]
    crash(world, lambda: world.done, message)
    assert world.job.state == "failed" and "8 times in a row in the same way" in world.job.reason
    assert world.violations() == []


@pytest.mark.parametrize("kind", restarts.MISTAKES)
def test_a_mistake_in_the_script_ends_the_job_at_its_first_start(kind: str) -> None:
    world = crashing(max_restarts=100)
    crash(world, lambda: world.done, f"{kind}: 'modle'\nand more")
    assert len(world.started) == 1
    assert world.job.state == "failed"
    assert world.job.reason == f"{kind}: 'modle': it would fail the same way at each start"
    assert world.job.failure is not None and world.job.failure.node == "n0"
    assert world.violations() == []


@pytest.mark.parametrize("kind", restarts.IMPORTS)
def test_an_import_that_fails_on_one_of_several_nodes_is_tried_once_more(kind: str) -> None:
    world = crashing(max_restarts=100)
    restart(world, f"{kind}: colum")
    crash(world, lambda: world.done, f"{kind}: colum")
    assert len(world.started) == 2 and world.job.reason.startswith(kind)
    assert world.violations() == []


def test_an_import_that_fails_on_the_only_node_ends_the_job() -> None:
    world = World(Settings(1, 4, max_restarts=100), 400)
    world.add("n0")
    world.run(lambda: len(world.started) == 1, 20)
    crash(world, lambda: world.done, "ModuleNotFoundError: colum")
    assert len(world.started) == 1 and world.job.state == "failed"


def test_what_fails_after_the_first_step_is_started_again() -> None:
    world = crashing(max_restarts=100)
    node, began = world.nodes["n0"], world.now
    told = Progress("n0", 1, 3, world.now)
    node.client.put(world.keys.progress("n0"), encode(told), node.lease)
    world.run(lambda: any(each.seen.progress for each in world.nodes.values()), 5)
    assert world.now - began < restarts.AT_ONCE, "the time alone does not tell"
    restart(world, "NameError: 'modle'")
    assert not world.done


def test_failures_that_may_pass_are_started_again() -> None:
    world = crashing(max_restarts=100)
    for message in ("OSError: stale file handle", "RuntimeError: NameError", "", "NameErrors"):
        restart(world, message)
    assert not world.done
