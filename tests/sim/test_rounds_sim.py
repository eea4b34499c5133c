"""Simulates clusters in virtual time, with scripted interruptions.

Holds what docs/explanation/rounds.md promises.
"""

from dataclasses import replace

import pytest
from spotelastic_checkpoints.messages import Attached, WorkerLeft
from spotelastic_checkpoints.types import Commit
from support.simulation.virtual_cluster import World
from support.simulation.virtual_processes import WARM

from spotelastic.agent.round_duties import ATTACH_PATIENCE
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.notice import Drain, Notice
from spotelastic.rendezvous import membership

EVERY = 10
SETTINGS = Settings(2, 4, snapshot_every=Interval(EVERY), checkpoint_every=Interval(50))


def cluster(
    count: int,
    settings: Settings = SETTINGS,
    steps: int = 400,
    *,
    plain: bool = False,
    sharded: bool = False,
) -> World:
    world = World(settings, steps, plain=plain, sharded=sharded)
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
    assert world.violations() == []
    assert [r.parent for r in starts[1:]] == [r.incarnation for r in starts[:-1]]


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
    assert world.lost_steps(first, second) == 0
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
    assert world.lost_steps(first, second) == 0
    finish(world)


def test_a_doomed_node_trains_on_while_fewer_than_min_would_be_left() -> None:
    world = cluster(2)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n1"].notice(60)
    world.add("n2")
    world.run(lambda: world.trains("n0", "n2"), 60)
    first, second = world.started
    assert world.lost_steps(first, second) == 0
    finish(world)


@pytest.mark.parametrize("sharded", [False, True])
def test_all_nodes_are_noticed_and_nobody_comes_before_they_are_gone(sharded: bool) -> None:
    """Nobody who stays holds the last save: its upload has to end before they do."""
    world = cluster(2, steps=1500, sharded=sharded)
    world.upload = 20.0
    world.run(lambda: world.step() > 25, 60)
    for name in ("n0", "n1"):
        world.nodes[name].notice(60)
    world.run(lambda: not world.nodes, 70)
    for name in ("n2", "n3"):
        world.add(name)
    world.run(lambda: world.trains("n2", "n3"), 60)
    before, after = world.started
    assert (before.number, after.resume.kind) == (1, "store")
    assert world.lost_steps(before, after) == 0
    finish(world)


@pytest.mark.parametrize("kind", [InterruptionKind.SPOT_INTERRUPTION, "a_kind_of_a_newer_node"])
def test_a_node_whose_notice_the_event_bus_alone_has_told_of_leaves_in_time(kind: str) -> None:
    """And its daemon knows by when."""
    world = cluster(2, steps=1500)
    world.run(lambda: world.step() > 25, 60)
    end = world.now + 60
    notice = Notice(InterruptionKind(kind), "n1", "sqs", world.now, world.now, end)
    membership.write_drain(world.store, world.keys, Drain("n1", notice))
    world.after(60, world.nodes["n1"].kill)
    world.run(lambda: "n1" not in world.nodes, 70)
    assert world.hurried == {"n1": end}
    world.add("n2")
    world.run(lambda: world.trains("n0", "n2"), 60)
    before, after = world.started
    assert world.lost_steps(before, after) == 0
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
    assert 0 <= world.lost_steps(first, second) <= EVERY
    assert second.charged == (), "a lost node is not the script's failure"
    finish(world)


def test_a_gang_fails_when_a_node_is_lost_and_goes_on_when_one_leaves() -> None:
    world = cluster(4, replace(SETTINGS, gang=True))
    world.nodes["n3"].leave()
    world.run(lambda: world.trains("n0", "n1", "n2"), 30)
    world.nodes["n2"].kill()
    world.run(lambda: world.done, 10)
    assert (world.job.state, world.job.reason) == ("failed", "lost n2 (--gang)")
    assert world.violations() == []


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


def test_spares_beyond_max_step_in_when_a_node_is_lost() -> None:
    settings = replace(SETTINGS, max_nodes=2)
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


@pytest.mark.parametrize("sharded", [False, True])
def test_a_departure_by_choice_loses_no_step_whoever_holds_its_slots(sharded: bool) -> None:
    world = cluster(3, sharded=sharded)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n2"].lag = 0.2  # its slots are told last
    world.nodes["n2"].leave()
    world.run(lambda: world.trains("n0", "n1"), 30)
    first, second = world.started
    assert second.cause == "drain" and world.lost_steps(first, second) == 0
    finish(world)


HOUR = 3600.0


@pytest.mark.parametrize("clocks", [(0, HOUR, -HOUR), (HOUR, -HOUR, 0), (-HOUR, 0, HOUR)])
def test_clocks_that_differ_cost_no_node_no_restart_and_no_step(clocks: tuple[float, ...]) -> None:
    settings = replace(SETTINGS, min_nodes=1, max_nodes=3, max_restarts=1)
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
    assert second.cause == "drain" and world.lost_steps(first, second) == 0
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
    assert world.lost_steps(world.started[3], world.started[4]) == 0
    finish(world)
    assert len(world.started) == 5


def two_that_train(clock: float = 0.0) -> tuple[World, str, str]:
    """Nodes that no failure may be charged to; the holder, and the other. `clock`: the second's."""
    world = World(replace(SETTINGS, min_nodes=1, max_nodes=2, max_restarts=0), 300)
    world.add("n0")
    world.add("n1", clock=clock)
    world.run(lambda: world.trains("n0", "n1"), 20)
    world.run(lambda: world.step() > 25, 60)
    return world, world.holder, next(name for name in ("n0", "n1") if name != world.holder)


@pytest.mark.parametrize("clock", [HOUR, 0, -HOUR])
def test_a_failure_that_a_loss_explains_is_not_charged_whatever_the_clocks(clock: float) -> None:
    """The holder charges a failure and vanishes; who follows it knows better, by its own clock."""
    world, held, other = two_that_train(clock)
    world.nodes[other].worker_exits(world.started[0].incarnation, 1)
    world.run(lambda: world.rounds[-1].charged != (), 5)
    world.nodes[held].kill()
    world.run(lambda: world.trains(other), 10)
    assert world.started[-1].charged == ()
    finish(world)


def test_a_loss_that_is_told_late_because_leases_were_renewed_is_not_charged_either() -> None:
    """As by a member of etcd that begins to lead: it gives each its time again, and some more."""
    world, held, other = two_that_train()
    world.nodes[other].worker_exits(world.started[0].incarnation, 1)
    world.run(lambda: world.rounds[-1].charged != (), 5)
    client, lease = world.nodes[other].client, world.nodes[held].lease
    world.nodes[held].kill()
    world.after(0.6 * world.settings.lease, lambda: client.refresh(lease))
    world.run(lambda: world.trains(other), 10)
    assert (world.started[-1].cause, world.started[-1].charged) == ("loss", ())
    finish(world)


def test_a_loss_that_is_told_late_because_etcd_was_away_is_not_charged_either() -> None:
    """As when a zone goes with its member of etcd: its leases are no proof until later."""
    world, held, other = two_that_train()
    world.nodes[held].client.cut()
    world.nodes[other].kill()
    world.after(1.0, world.nodes[held].client.heal)
    world.run(lambda: world.rounds[-1].charged != (), 5)
    world.run(lambda: world.trains(held), 15)
    assert (world.started[-1].cause, world.started[-1].charged) == ("loss", ())
    finish(world)


def test_a_claim_that_comes_late_from_a_replaced_round_stops_no_commits() -> None:
    """The object store was slow to it; it fences the round that trains, which then claims anew."""
    world = cluster(2)
    world.run(lambda: world.commit is not None, 60)
    before = world.started[-1].epoch
    world.bucket.claim()
    world.run(lambda: world.started[-1].epoch > before, 30)
    assert len(world.started) == 1, "no restart"
    world.run(lambda: world.commit is not None and world.commit.epoch > before + 1, 30)
    finish(world)


def test_a_round_that_began_from_the_start_gives_way_to_a_later_commit_that_is_found() -> None:
    """The object store was away from before the first round on, and etcd knew of no commit."""
    world, kept = World(SETTINGS, 400), Commit(1, 198)
    world.bucket.hold(kept)
    world.bucket.answers = False
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.step() > 20, 40)
    assert world.started[-1].resume.kind == "fresh"
    world.bucket.answers = True
    world.run(lambda: len(world.started) > 1, 30)
    resume = world.started[-1].resume
    assert (world.started[-1].cause, resume.kind, resume.step) == ("commit", "store", kept.step)
    world.run(lambda: world.commit != kept, 60)
    assert world.commit is not None and world.commit.step > kept.step
    world.run(lambda: world.done, 300)
    assert len(world.started) == 2, "once"


def test_a_claim_that_comes_late_restarts_nothing_that_has_come_as_far() -> None:
    world, kept = World(SETTINGS, 400), Commit(1, 15)
    world.bucket.hold(kept)
    world.bucket.answers = False
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.step() > 60, 60)
    world.bucket.answers = True
    world.run(lambda: world.commit is not None and world.commit.epoch > kept.epoch, 60)
    world.run(lambda: world.done, 300)
    assert len(world.started) == 1


@pytest.mark.parametrize("back", [True, False], ids=["taken back", "gone"])
def test_a_lease_that_is_lost_while_leaving_costs_no_step(back: bool) -> None:
    """Its workers go on to the agreed step all the same, unless they are gone with it."""
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    leaver = world.nodes[next(name for name in ("n0", "n1", "n2") if name != world.holder)]
    leaver.leave()
    training = world.trainings[world.started[-1].incarnation]
    world.run(lambda: len(training.target) == 3, 10)
    world.store.revoke(leaver.lease)
    if not back:
        leaver.client.cut()
    others = sorted({"n0", "n1", "n2"} - {leaver.name})
    left_at = world.now
    world.run(lambda: world.trains(*others), 5)
    first, second = world.started
    assert second.cause == "drain" and world.lost_steps(first, second) == 0
    assert world.now < left_at + 3
    finish(world)


def test_a_step_is_agreed_on_also_before_the_workers_have_restored() -> None:
    """Their pages say nothing then: a target that lies behind them would never be reached."""
    world = cluster(3)
    world.run(lambda: world.step() > 55, 60)
    world.nodes["n1"].worker_exits(world.started[-1].incarnation, 1)
    world.run(lambda: len(world.started) == 2, 10)
    world.nodes["n1"].notice(100)
    noticed_at = world.now
    world.run(lambda: len(world.started) == 3, 30)
    _, second, third = world.started
    assert world.now < noticed_at + 3, "not at the deadline"
    assert world.lost_steps(second, third) == 0
    finish(world)


def test_nobody_is_left_out_of_a_proposal_until_the_store_is_known_to_be_back() -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n1"].worker_exits(world.started[-1].incarnation, 1)
    world.run(lambda: world.round is not None and world.round.phase == "proposed", 10)
    for node in world.nodes.values():
        node.client.cut()
    healed_at = world.now + 10
    for node in world.nodes.values():
        world.after(10, node.client.heal)
    world.run(lambda: world.now > healed_at and world.trains("n0", "n1", "n2"), 30)
    assert world.started[-1].missed == () and world.started[-1].cause == "worker"
    finish(world)


def test_a_node_whose_lease_ran_out_is_taken_back_as_the_same() -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    before = world.started[-1]
    world.store.revoke(world.nodes["n1"].lease)
    world.run(lambda: len(world.started) > 1 and world.trains("n0", "n1", "n2"), 30)
    member, was = world.started[-1].member("n1"), before.member("n1")
    assert member is not None and was is not None and member.incarnation == was.incarnation
    finish(world)


def test_a_pinned_rank_is_filled_while_its_node_is_gone_and_given_back() -> None:
    world = World(replace(SETTINGS, max_nodes=3, rank_policy="pinned"), 400)
    for name, rank in (("a", 2), ("b", 0), ("c", 1)):
        world.add(name, rank=rank)

    def order() -> list[str]:
        return [m.node for m in world.started[-1].members]

    world.run(lambda: world.trains("a", "b", "c"), 20)
    assert order() == ["b", "c", "a"]
    world.nodes["b"].kill()
    world.run(lambda: world.trains("a", "c"), 10)
    assert order() == ["a", "c"]
    world.add("spare")
    world.run(lambda: world.trains("a", "c", "spare"), 30)
    assert order() == ["spare", "c", "a"]
    world.add("b", rank=0)
    world.run(lambda: world.trains("a", "b", "c"), 30)
    assert order() == ["b", "c", "a"], "the spare makes room"
    assert world.started[-1].cause == "arrival" and world.started[-1].nodes == ("b",)
    finish(world)


# -- scripts without a Checkpointer, and ends -----------------------------------------------------


def test_a_script_without_a_checkpointer_delays_one_planned_change_only() -> None:
    world = cluster(2, plain=True)
    for count in (3, 4):
        joined_at = world.now
        world.add(f"n{count - 1}")
        world.begins(count - 1, 30)
        waited = world.now - joined_at - WARM
    assert waited < 2, "the second change knows"
    told = [name for name, line in world.said if "not entered a spotelastic.Checkpointer" in line]
    assert told == [world.started[1].members[0].node], "one node says so, once"
    finish(world)


def test_a_script_without_a_checkpointer_is_warned_of_also_when_a_node_was_lost() -> None:
    world = cluster(3, plain=True)
    for victim in ("n2", "n1"):
        world.passes(ATTACH_PATIENCE)
        world.nodes[victim].kill()
        world.add(f"{victim}-again")
        world.run(lambda: len(world.started[-1].members) == 3, 60)
    told = [name for name, line in world.said if "not entered a spotelastic.Checkpointer" in line]
    assert told == [world.started[0].members[0].node], "one node says so, once"


def test_a_script_that_comes_to_its_checkpointer_late_is_asked_again() -> None:
    world = cluster(2, plain=True)
    world.add("n2")
    world.run(lambda: world.trains("n0", "n1", "n2"), 30)
    assert world.started[-1].plain
    world.plain = False
    for node in world.nodes.values():
        node.post(Attached(0))
    world.run(lambda: world.step() > 25, 30)
    world.nodes["n2"].leave()
    world.run(lambda: world.trains("n0", "n1"), 30)
    second, third = world.started[1:]
    assert world.lost_steps(second, third) == 0 and third.plain == 0
    finish(world)


def test_who_has_finished_waits_a_while_for_the_others_and_leaves_them_to_it() -> None:
    world = cluster(2, replace(SETTINGS, exit_barrier=60.0), steps=50)
    slow, done = world.nodes["n0"], world.nodes["n1"]
    slow.hangs = True
    world.run(lambda: done.exit_code is not None, 120)
    assert done.exit_code == 0 and not world.done
    assert any("leaves without them" in line for _, line in world.said)
    slow.post(WorkerLeft(0, 0, clean=True))
    slow.worker_exits(world.started[-1].incarnation, 0)
    world.run(lambda: world.done, 10)
    assert world.job.state == "succeeded" and len(world.started) == 1


def test_a_group_that_has_finished_in_part_and_left_is_not_waited_for() -> None:
    world = cluster(2, replace(SETTINGS, exit_barrier=60.0), steps=50)
    slow, done = world.nodes["n0"], world.nodes["n1"]
    slow.hangs = True
    world.run(lambda: done.exit_code is not None, 120)
    slow.worker_exits(world.started[-1].incarnation, 1)
    world.run(lambda: world.done, 10)
    assert world.job.state == "failed"
    assert world.job.reason.startswith("n0 did not finish, and n1 had, and left")
    assert world.job.failure is not None and world.job.failure.node == "n0"
