"""Jobs that are told to end, in virtual time: after a commit, whatever goes wrong meanwhile."""

from dataclasses import replace

from spotelastic_checkpoints.types import Commit, Resume
from support.simulation.virtual_cluster import World
from test_rounds_sim import SETTINGS, check_invariants, cluster

from spotelastic.model.interval import Interval
from spotelastic.model.job import Ending
from spotelastic.model.round import Round
from spotelastic.rendezvous import stopping
from spotelastic.rendezvous.decision import EndJob, Moment
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import encode

RARE = replace(SETTINGS, checkpoint_every=Interval(10_000))


def stop(world: World, state: str = "stopped") -> None:
    ending = Ending(state, world.now, "asked to stop")  # type: ignore[arg-type]
    world.store.put(world.keys.ending, encode(ending))


def end(world: World, within: float) -> int:
    """The step that is committed at the end."""
    world.run(lambda: world.done, within)
    check_invariants(world)
    return world.commit.step if world.commit is not None else 0


def test_a_job_that_is_stopped_ends_with_its_last_step_committed() -> None:
    world = cluster(3, RARE)
    world.run(lambda: world.step() > 25, 60)
    stop(world)
    committed = end(world, 30)
    assert committed > 25
    assert (world.job.state, world.job.final_step) == ("stopped", committed)
    assert world.job.reason == f"asked to stop; step {committed} is committed"
    (training,) = world.trainings.values()
    assert training.step == committed, "no step was executed in vain"
    world.run(lambda: all(node.exit_code == 1 for node in world.nodes.values()), 5)


def test_a_run_that_was_sent_back_is_saved_soon_and_not_taken_for_what_it_was_before() -> None:
    world = World(RARE, 4000)
    world.bucket.hold(Commit(1, 2000))
    world.sent_back = 500
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.trains("n0", "n1"), 20)
    (training,) = world.trainings.values()
    world.run(lambda: training.step > 525, 60)
    assert training.round.resume == Resume("store", 2000, epoch=1)
    stop(world)
    assert end(world, 30) == world.job.final_step == training.step < 600
    assert world.commit == Commit(2, training.step)


def test_the_state_that_the_job_ends_in_is_the_one_asked_for() -> None:
    world = cluster(2, RARE)
    stop(world, "timed out")
    end(world, 30)
    assert world.job.state == "timed out"


def test_a_stop_during_another_planned_change_still_waits_for_its_commit() -> None:
    world = cluster(2, RARE)
    world.run(lambda: world.step() > 25, 60)
    world.add("n2")
    world.run(lambda: world.store.get(world.keys.proposal) is not None, 20)
    stop(world)
    assert end(world, 60) == world.job.final_step > 25


def test_a_node_lost_while_the_job_stops_does_not_keep_it() -> None:
    world = cluster(3, RARE)
    world.run(lambda: world.step() > 25, 60)
    stop(world)
    world.run(lambda: world.store.get(world.keys.proposal) is not None, 5)
    world.nodes["n1"].kill()
    committed = end(world, 60)
    assert world.job.final_step == committed > 20


def test_a_commit_that_never_comes_is_not_waited_for_beyond_its_time() -> None:
    world = cluster(2, RARE)
    world.upload = 10 * stopping.WITHIN
    world.run(lambda: world.step() > 25, 60)
    world.step_time = 2.0  # nothing depends on how many are made meanwhile
    began = world.now
    stop(world)
    end(world, stopping.WITHIN + 30)
    assert world.now - began >= stopping.WITHIN
    assert (world.job.state, world.job.final_step) == ("stopped", 0)
    assert world.job.reason == "asked to stop; nothing is committed"


def test_a_script_without_a_checkpointer_is_ended_without_one() -> None:
    world = cluster(2, RARE, plain=True)
    stop(world)
    end(world, 30)
    assert world.job.reason == "asked to stop; nothing is committed"


def test_a_job_that_waits_for_nodes_ends_at_once() -> None:
    world = cluster(2, RARE)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n1"].kill()
    world.run(lambda: world.round is not None and len(world.round.members) == 1, 20)
    began = world.now
    stop(world)
    end(world, 5)
    assert world.now - began < 2


def test_a_commit_counts_also_where_no_node_is_left_to_tell_of_it() -> None:
    round_ = Round(2, "r2", "proposed", (), "loss", "all are lost", known=Commit(1, 48))
    at = Moment(RunState(round=round_), SETTINGS, 5.0, str)
    (ends,) = stopping.end(at, Ending("stopped", 4.0, "asked to stop")).actions
    assert isinstance(ends, EndJob)
    assert (ends.job.reason, ends.job.final_step) == ("asked to stop; step 48 is committed", 48)
