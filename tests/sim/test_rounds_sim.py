"""Clusters in virtual time: the promises of docs/architecture.md, with scripted interruptions."""

import itertools

import pytest
from support.virtual import World

from spotelastic.model.job import Settings
from spotelastic.model.round import Round, Schedule

SETTINGS = Settings(2, 4, schedule=Schedule(snapshot_every=10, checkpoint_every=50))


def cluster(count: int, settings: Settings = SETTINGS, steps: int = 400, seed: int = 0) -> World:
    world = World(settings, steps, seed)
    for index in range(count):
        world.add(f"n{index}", zone="abc"[index % 3])
    world.run(lambda: world.trains(*(f"n{i}" for i in range(count))), 20)
    return world


def finish(world: World) -> None:
    world.run(lambda: world.done, 300)
    check_invariants(world)


def check_invariants(world: World) -> None:
    settings = world.settings
    for round_ in world.rounds:
        slots = [m.slot for m in round_.members]
        assert slots == list(range(len(slots))), "ranks are a permutation"
        assert len(slots) <= settings.max_nodes
        if round_.phase == "started":
            assert len(slots) >= settings.min_nodes
    starts = world.started
    assert [r.number for r in starts] == list(range(1, len(starts) + 1)), "one line of history"
    for before, after in itertools.pairwise(starts):
        assert after.parent == before.incarnation
        assert after.resume.step <= world.trainings[before.incarnation].step


def lost_steps(world: World, before: Round, after: Round) -> int:
    return world.trainings[before.incarnation].step - after.resume.step


def test_nodes_that_come_together_form_one_round() -> None:
    world = cluster(4)
    assert len(world.started) == 1
    finish(world)
    assert world.commit is not None and world.commit.step == 400


def test_an_arrival_costs_one_round_and_no_step() -> None:
    world = cluster(2)
    world.run(lambda: world.step() > 25, 60)
    world.add("n2")
    world.run(lambda: world.trains("n0", "n1", "n2"), 30)
    first, second = world.started
    assert second.cause == "arrival"
    assert lost_steps(world, first, second) == 0
    finish(world)


def test_a_notice_loses_no_step_and_the_others_do_not_wait_for_the_end() -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    doomed = world.nodes["n1"]
    noticed_at = world.now
    doomed.notice(15)
    world.run(lambda: world.trains("n0", "n2"), 30)
    assert doomed.alive and world.now < noticed_at + 15
    first, second = world.started
    assert second.cause == "drain" and second.nodes == ("n1",)
    assert lost_steps(world, first, second) == 0
    finish(world)


def test_a_doomed_node_trains_on_while_fewer_than_min_would_be_left() -> None:
    world = cluster(2)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n1"].notice(60)
    world.add("n2")
    world.run(lambda: world.trains("n0", "n2"), 60)
    first, second = world.started
    assert lost_steps(world, first, second) == 0
    finish(world)


@pytest.mark.parametrize("victim", ["n0", "n1"], ids=["holder", "member"])
def test_a_lost_node_costs_at_most_a_snapshot_interval(victim: str) -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    world.nodes[victim].kill()
    others = sorted({"n0", "n1", "n2"} - {victim})
    world.run(lambda: world.trains(*others), SETTINGS.lease + 3)
    first, second = world.started
    assert second.cause == "loss" and second.nodes == (victim,)
    assert 0 <= lost_steps(world, first, second) <= SETTINGS.schedule.snapshot_every
    assert second.charged == (), "a lost node is not the script's failure"
    finish(world)


def test_below_min_the_survivors_wait_for_a_replacement() -> None:
    world = cluster(2)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n0"].kill()
    world.run(lambda: world.round is not None and len(world.round.members) == 1, 10)
    assert world.round is not None and world.round.phase == "proposed"
    world.add("n9")
    world.run(lambda: world.trains("n1", "n9"), 30)
    assert world.started[-1].resume.kind == "memory"
    finish(world)


def test_a_worker_failure_is_charged_and_resumes_from_memory() -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n1"].worker_exits(world.started[-1].incarnation, -9)
    world.run(lambda: len(world.started) == 2 and world.step() > 25, 10)
    second = world.started[1]
    assert second.cause == "worker" and len(second.charged) == 1
    assert second.resume.kind == "memory"
    finish(world)


def test_a_script_that_always_fails_ends_the_job() -> None:
    world = cluster(2, Settings(2, 2, max_restarts=2))
    while not world.done:
        current = world.started[-1].incarnation
        world.nodes["n0"].worker_exits(current, 1)
        world.run(
            lambda current=current: (
                world.done
                or (world.started[-1].incarnation != current and world.trains("n0", "n1"))
            ),
            20,
        )
    assert len(world.started) == 3, "the first run and two restarts"


def test_spares_beyond_max_step_in_when_a_node_is_lost() -> None:
    settings = Settings(2, 2, schedule=SETTINGS.schedule)
    world = World(settings, 300)
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.trains("n0", "n1"), 20)
    world.add("spare")
    world.run(lambda: world.step() > 60, 60)
    assert len(world.started) == 1, "a spare changes nothing"
    world.nodes["n1"].kill()
    world.run(lambda: world.trains("n0", "spare"), settings.lease + 3)
    finish(world)


def test_training_goes_on_without_the_store() -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    for node in world.nodes.values():
        node.client.cut()
    before = world.started[-1]
    world.run(lambda: world.step() > 25 + 200, 60)
    for node in world.nodes.values():
        node.client.heal()
    finish(world)
    assert world.started == [before], "nodes whose leases ran out are adopted again"


@pytest.mark.parametrize("seed", range(40))
def test_random_interruptions_always_end_in_success(seed: int) -> None:
    """Kills, notices, worker failures and arrivals at random moments, below min too."""
    world = cluster(4, Settings(2, 4, max_restarts=100, schedule=SETTINGS.schedule), 600, seed)
    names = iter(f"r{i}" for i in range(1000))
    for _ in range(20):
        goal = world.now + world.random.uniform(0.0, 4.0)
        world.after(goal - world.now, lambda: None)
        world.run(lambda goal=goal: world.now >= goal or world.done, 10)
        if world.done:
            break
        if not world.nodes:
            world.add(next(names))
        victim = world.random.choice(sorted(world.nodes))
        kind = world.random.choice(["kill", "notice", "worker", "arrive", "arrive"])
        if kind == "kill" and len(world.nodes) > 1:
            world.nodes[victim].kill()
        elif kind == "notice" and len(world.nodes) > 1:
            world.nodes[victim].notice(world.random.uniform(1, 20))
        elif kind == "worker" and world.round is not None:
            world.nodes[victim].worker_exits(world.round.incarnation, 1)
        elif kind == "arrive":
            world.add(next(names))
    while len(world.nodes) < 2:
        world.add(next(names))
    for _ in range(2):
        world.add(next(names))
    finish(world)


HOUR = 3600.0


@pytest.mark.parametrize("clocks", [(0, HOUR, -HOUR), (HOUR, -HOUR, 0), (-HOUR, 0, HOUR)])
def test_clocks_that_differ_cost_no_node_no_restart_and_no_step(clocks: tuple[float, ...]) -> None:
    settings = Settings(1, 3, max_restarts=1, schedule=SETTINGS.schedule)
    world = World(settings, 600)
    for index, clock in enumerate(clocks):
        world.add(f"n{index}", clock=clock)
    world.run(lambda: world.trains("n0", "n1", "n2"), 20)
    world.run(lambda: world.step() > 25, 60)
    doomed = next(name for name in sorted(world.nodes) if name != world.holder)
    world.nodes[doomed].notice(15)
    left = sorted(set(world.nodes) - {doomed})
    world.run(lambda: world.trains(*left), 10)
    first, second = world.started
    assert second.cause == "drain" and lost_steps(world, first, second) == 0
    world.run(lambda: world.step() > 60, 60)
    world.nodes[left[0]].worker_exits(second.incarnation, 1)
    world.run(lambda: len(world.started) == 3 and world.trains(*left), 10)
    assert len(world.started[2].charged) == 1
    world.run(lambda: world.step() > 100, 60)
    held = world.holder
    world.nodes[held].kill()
    other = next(name for name in left if name != held)
    world.run(lambda: world.trains(other), settings.lease + 3)
    assert len(world.started[3].charged) == 1, "the failure was long before the loss"
    world.add("n3", clock=clocks[0])
    world.run(lambda: world.trains(other, "n3"), 10)
    assert lost_steps(world, world.started[3], world.started[4]) == 0
    finish(world)
    assert len(world.started) == 5


@pytest.mark.parametrize("clock", [HOUR, 0, -HOUR])
def test_a_failure_that_a_loss_explains_is_not_charged_whatever_the_clocks(clock: float) -> None:
    """The holder charges a failure and vanishes; who follows it knows better, by its own clock."""
    world = World(Settings(1, 2, max_restarts=0, schedule=SETTINGS.schedule), 300)
    world.add("n0")
    world.add("n1", clock=clock)
    world.run(lambda: world.trains("n0", "n1"), 20)
    world.run(lambda: world.step() > 25, 60)
    held, other = world.holder, next(name for name in ("n0", "n1") if name != world.holder)
    world.nodes[other].worker_exits(world.started[0].incarnation, 1)
    world.run(lambda: world.rounds[-1].charged != (), 5)
    world.nodes[held].kill()
    world.run(lambda: world.trains(other), 10)
    assert world.started[-1].charged == ()
    finish(world)
