"""How often a cluster in virtual time saves: measured, agreed on, and the same on all ranks."""

from dataclasses import replace

import pytest
from spotelastic_checkpoints.types import Schedule
from support.simulation.virtual_cluster import World
from support.simulation.virtual_training import STEP, Training

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.rendezvous import intervals

SETTINGS = Settings(2, 4)


def cluster(settings: Settings = SETTINGS, *, stall: float = 0.01, sharded: bool = False) -> World:
    world = World(settings, 100_000, sharded=sharded)
    world.stall = stall
    for name in "abc":
        world.add(name)
    world.run(lambda: world.trains("a", "b", "c"), 30)
    return world


def tuned(world: World) -> Schedule:
    """The intervals, once others hold than in the beginning."""
    before = world.started[-1].schedule
    world.run(lambda: world.started[-1].schedule != before, 120)
    return world.started[-1].schedule


def test_intervals_are_measured_and_change_without_a_new_round() -> None:
    world = cluster()
    assert world.started[-1].schedule == intervals.START
    schedule = tuned(world)
    # 0.01 s in 1,000 are not worth more than 10 s of work; what is sealed is committed with it.
    assert schedule.snapshot_every == round(0.01 / intervals.NEGLIGIBLE / STEP)
    assert schedule.checkpoint_every % schedule.snapshot_every == 0
    step = world.step()
    world.run(lambda: world.step() > step + 50, 30)
    [round_] = world.started
    training = world.trainings[round_.incarnation]
    assert isinstance(training, Training) and training.schedule == schedule, "on all ranks"
    assert world.violations() == []


def test_what_the_user_says_holds_from_the_first_step() -> None:
    settings = replace(
        SETTINGS, snapshot_every=Interval(7), checkpoint_every=Interval(seconds=90.0)
    )
    world = cluster(settings)
    assert world.started[-1].schedule.snapshot_every == 7
    assert tuned(world) == Schedule(7, round(90.0 / STEP))


def test_a_rebalance_recommendation_shortens_both() -> None:
    world = cluster(stall=0.2, sharded=True)
    before = tuned(world)
    world.nodes["b"].rebalance()
    after = tuned(world)
    assert after.snapshot_every < before.snapshot_every
    assert after.checkpoint_every < before.checkpoint_every
    assert world.trains("a", "b", "c"), "nobody leaves for it"


def test_a_node_that_goes_with_notice_leaves_no_short_intervals_behind() -> None:
    world = cluster(stall=0.2)
    before = tuned(world)
    world.nodes["c"].notice(60)
    world.run(lambda: world.trains("a", "b"), 60)
    assert world.started[-1].schedule.snapshot_every >= before.snapshot_every


def test_the_next_round_goes_on_with_what_was_measured() -> None:
    world = cluster(stall=0.2)
    before = tuned(world)
    world.nodes["c"].kill()
    world.run(lambda: world.trains("a", "b"), 60)
    first, second = world.started
    assert second.past.losses == 1
    # A new holder counts from when it saw the round.
    assert second.past.node_seconds == pytest.approx(
        3 * (second.proposed_at - first.started_at), abs=3.0
    )
    assert 0 < second.schedule.snapshot_every < before.snapshot_every, "it is set back after all"


def test_a_node_that_dies_while_intervals_change_leaves_no_two_of_them() -> None:
    world = cluster()
    world.run(lambda: bool(world.trainings[world.started[-1].incarnation].target), 120)
    world.nodes["b"].kill()
    world.run(lambda: world.trains("a", "c"), 60)
    step = world.step()
    world.run(lambda: world.step() > step + 300, 60)
    assert world.violations() == []


def test_a_holder_that_dies_while_all_wait_leaves_nobody_waiting() -> None:
    world = cluster()
    training = world.trainings[world.started[-1].incarnation]
    world.run(lambda: training.step in training.target.values(), 120)
    holder = world.holder
    world.nodes[holder].kill()
    world.run(lambda: world.trains(*(set("abc") - {holder})), 60)
    assert world.violations() == []
