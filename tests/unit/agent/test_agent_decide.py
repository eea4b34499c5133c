"""The agent's decisions about its workers: when they stall, end, or cannot be ended."""

import math
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest
from spotelastic_checkpoints.messages import Superseded
from spotelastic_checkpoints.types import Commit, WorkerStep
from support.simulation.node_state import changed, node_state

from spotelastic.agent import actions as do
from spotelastic.agent.checkpoints import CLAIM_TIMEOUT
from spotelastic.agent.decide import AgentDecision, decide
from spotelastic.agent.observe import observe
from spotelastic.agent.round_duties import CLAIM_PATIENCE, CLAIM_RETRY, DUMP_WITHIN, STALL_LOOKS
from spotelastic.agent.shutdown import STUCK
from spotelastic.agent.state.events import (
    Claimed,
    ExaminationStarted,
    Exited,
    WorkerFailing,
)
from spotelastic.agent.state.node_health import NodeHealth
from spotelastic.agent.state.values import (
    NodeState,
    Pace,
    RoundStore,
    StorageClaim,
    WorkerExit,
    Workers,
    look,
)
from spotelastic.agent.state.worker_changes import GONE_WITHIN
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.round import LARGE, Cause, Member, Round
from spotelastic.rendezvous.view import RunState

NOW = 1000.0
TIMEOUT = 8.0
NODE = Node("b", "inc-b", "10.0.0.2", "", Fingerprint("3.11", "2.13"), "10.0.0.2:1")
MEMBERS = (
    Member("a", "inc-a", 0, "10.0.0.1", "", 2),
    Member("b", "inc-b", 1, "10.0.0.2", "", 2),
)
ROUND = Round(1, "r1", "started", MEMBERS, "start", "", store="10.0.0.1:5", epoch=1)
WORKERS = Workers("r1", 1, 2, 1, NOW, frozenset({"r1/0", "r1/1"}), attached=True)


def local(**workers: object) -> NodeState:
    return node_state(
        node=NODE,
        fingerprint=NODE.fingerprint,
        zygote=True,
        daemon=NODE.daemon,
        spare="store/spare-1",
        registered=True,
        told_at=math.inf,
        workers=replace(WORKERS, **workers),  # type: ignore[arg-type]
    )


def seen(round_: Round = ROUND, timeout: float = TIMEOUT, **more: object) -> RunState:
    settings = Settings(2, 2, workers=2, stall_timeout=timeout)
    return RunState(settings=settings, round=round_, holder="a", **more)  # type: ignore[arg-type]


def decided(local_: NodeState, seen_: RunState, now: float) -> AgentDecision:
    return decide(local_, seen_, now, lambda: "new")


def after(cause: Cause) -> Round:
    return replace(ROUND, number=2, incarnation="r2", phase="proposed", parent="r1", cause=cause)


# -- answers to a proposal ------------------------------------------------------------------------


def proposed(size: int) -> Round:
    """A round of many nodes that is to follow the one whose workers still run here."""
    more = tuple(Member(f"n{slot}", f"inc-{slot}", slot, "", "", 2) for slot in range(2, size))
    return replace(after("loss"), members=(*MEMBERS, *more))


@pytest.mark.parametrize("size", [2, LARGE])
def test_a_member_says_at_once_that_it_has_seen_a_proposal(size: int) -> None:
    round_ = proposed(size)
    here = replace(seen(round_), round_at=NOW)
    assert do.Acknowledge(round_, ready=False) in decided(local(killed=True), here, NOW).actions


@pytest.mark.parametrize("size", [2 * LARGE, 16 * LARGE])
def test_a_member_of_a_large_round_first_waits_whether_it_can_say_ready(size: int) -> None:
    """It wakes long before the holder would leave it out."""
    round_ = proposed(size)
    here = replace(seen(round_), round_at=NOW)
    assert here.settings is not None
    waiting = decided(local(killed=True), here, NOW)
    assert do.Acknowledge(round_, ready=False) not in waiting.actions
    given = here.settings.seen_within * size / LARGE
    assert NOW < waiting.wake_at < NOW + given / 2
    late = decided(local(killed=True), here, waiting.wake_at)
    assert do.Acknowledge(round_, ready=False) in late.actions
    reaped = changed(local(), workers=None)
    assert do.Acknowledge(round_, ready=True) in decided(reaped, here, NOW).actions
    assert do.Acknowledge(round_, ready=False) not in decided(reaped, here, NOW).actions


# -- the holder -----------------------------------------------------------------------------------


def test_a_node_that_finds_its_own_name_as_the_holder_takes_that_up() -> None:
    """A store that went back still has the key, under a lease that this node keeps alive."""
    assert do.Campaign() in decided(local(), replace(seen(), holder="b"), NOW).actions
    assert do.Campaign() in decided(local(), replace(seen(), holder=""), NOW).actions
    assert do.Campaign() not in decided(local(), seen(), NOW).actions


FIRST = replace(ROUND, phase="proposed", members=(replace(MEMBERS[1], slot=0),), epoch=0)
"""A proposed round of which this node is the first one."""


def claiming() -> NodeState:
    """A node that waits only for the answer to its claim."""
    return changed(
        local(),
        workers=None,
        round_store=RoundStore("s1", "r1", "10.0.0.2:5"),
        claim=StorageClaim("r1", NOW, pending=True),
    )


def test_a_round_without_a_parent_waits_for_the_store_until_its_claim_has_failed() -> None:
    """Only the store knows whether there is a commit to go on from."""
    first, ready = FIRST, claiming()
    acknowledges = do.Acknowledge(first, ready=True)
    assert acknowledges not in decided(ready, seen(first), NOW + CLAIM_TIMEOUT).actions
    failed = changed(ready, claim=StorageClaim("r1", NOW, pending=False))
    assert acknowledges in decided(failed, seen(first), NOW + CLAIM_TIMEOUT).actions
    # What a later round goes on from may be in memory: it waits for less.
    later = replace(first, parent="r0")
    soon = NOW + CLAIM_PATIENCE
    assert do.Acknowledge(later, ready=True) in decided(ready, seen(later), soon).actions


def test_a_job_whose_storage_belongs_to_another_run_fails_before_it_has_trained() -> None:
    """Nothing of it could be saved. One that has trained goes on, and says so."""
    first, ready = FIRST, claiming()
    refused = observe(ready, Claimed("r1", 0, None, "it is a's, not b's", owned=True), NOW)
    acts = decided(refused, seen(first), NOW).actions
    assert do.FailJob("it is a's, not b's") in acts
    assert do.Acknowledge(first, ready=True) not in acts
    away = observe(ready, Claimed("r1", 0, None, "it does not answer"), NOW)
    assert do.Acknowledge(first, ready=True) in decided(away, seen(first), NOW).actions
    later = replace(first, parent="r0")
    acts = decided(refused, seen(later), NOW).actions
    assert do.Acknowledge(later, ready=True) in acts


def test_a_port_that_rounds_share_opens_once_the_round_has_started() -> None:
    """All are ready then: no worker of the round before could come to this one's store."""
    first = replace(ROUND, members=(replace(MEMBERS[1], slot=0), replace(MEMBERS[0], slot=1)))
    store = RoundStore("r1", "s1", "10.0.0.2:29500", serves=False)
    ready = changed(local(), workers=None, round_store=store)
    proposed = replace(first, phase="proposed")
    assert do.ServeStore() not in decided(ready, seen(proposed), NOW).actions
    steps = [*decided(ready, seen(first), NOW).actions]
    assert steps.index(do.ServeStore()) < steps.index(do.StartWorkers(first, first.members[0]))
    serves = changed(ready, round_store=replace(store, serves=True))
    assert do.ServeStore() not in decided(serves, seen(first), NOW).actions


def test_the_first_node_of_a_round_whose_epoch_was_outrun_claims_anew_after_a_while() -> None:
    first = replace(ROUND, members=(replace(MEMBERS[1], slot=0), replace(MEMBERS[0], slot=1)))
    claimed = changed(
        local(),
        round_store=RoundStore("s1", "r1", "10.0.0.2:5"),
        claim=StorageClaim("r1", NOW, False, 1),
    )
    claims = do.ClaimStorage(first)
    later = NOW + CLAIM_RETRY
    assert claims not in decided(claimed, seen(first), later).actions
    outrun = observe(claimed, Superseded(1), NOW)
    assert claims not in decided(outrun, seen(first), NOW).actions
    assert claims in decided(outrun, seen(first), later).actions
    again = changed(outrun, claim=StorageClaim("r1", later, False, 3))
    assert do.Acknowledge(first, ready=True) in decided(again, seen(first), later).actions
    assert claims not in decided(again, seen(replace(first, epoch=3)), later + 100).actions


def test_storage_is_not_claimed_while_the_store_is_away() -> None:
    """A claim asks the store first whether its round is still the current one."""
    first = replace(ROUND, phase="proposed", members=(replace(MEMBERS[1], slot=0),))
    claims, opens = do.ClaimStorage(first), do.OpenStore(first)
    ready = changed(local(), workers=None)
    assert {claims, opens} <= set(decided(ready, seen(first), NOW).actions)
    for away, lost in (
        (ready, seen(first, healthy=False)),
        (changed(ready, write_at=NOW + 1), seen(first)),
    ):
        actions = decided(away, lost, NOW).actions
        assert opens in actions and claims not in actions
    assert decided(changed(ready, write_at=NOW + 1), seen(first), NOW).wake_at == NOW + 1


@pytest.mark.parametrize(
    ("epoch", "step", "commit"),
    [(2, 30, Commit(1, 90)), (0, 250, Commit(5, 100))],
    ids=["a node that went back", "the store was away when the round started"],
)
def test_only_a_step_that_was_reached_in_its_epoch_is_what_a_leaving_node_calls_committed(
    epoch: int, step: int, commit: Commit
) -> None:
    workers = replace(WORKERS, epoch=epoch, alive=frozenset())
    gone = changed(local(), workers=workers, leaving=15, left=True, step=step, commit=commit)
    told = f"leaves after step {step}; the newest commit is step {commit.step}"
    without = replace(ROUND, members=MEMBERS[:1])
    assert do.Say("left", told) in decided(gone, seen(without), NOW).actions


# -- stalls ---------------------------------------------------------------------------------------


def pages(*steps: int, waiting: bool = False, begun: bool = True) -> Sequence[WorkerStep]:
    return [
        WorkerStep(rank + 2, rank, step, 0.1, NOW if begun else 0.0, NOW + step, True, waiting)
        for rank, step in enumerate(steps)
    ]


def looked(*looks: Sequence[WorkerStep]) -> Pace:
    pace = Pace()
    for number, each in enumerate(looks):
        pace = look(pace, each, NOW + number)
    return pace


def test_looks_that_find_the_same_steps_are_counted() -> None:
    pace = looked(pages(4, 5), pages(5, 5), pages(5, 5), pages(5, 5))
    assert pace.unchanged == 2
    assert look(pace, pages(6, 5), NOW).unchanged == 0


def test_the_worker_that_is_furthest_behind_is_named() -> None:
    pace = looked(pages(7, 5))
    assert (pace.behind, pace.step, pace.step_at) == (1, 5, NOW + 5)


@pytest.mark.parametrize(
    "kept", [pages(5, 5, waiting=True), pages(5, 5, begun=False)], ids=["waiting", "not begun"]
)
def test_workers_that_need_not_get_on_do_not_stall(kept: Sequence[WorkerStep]) -> None:
    assert looked(kept, kept, kept).unchanged == 0


def test_workers_are_looked_at_several_times_within_the_stall_time() -> None:
    first = NOW + TIMEOUT / STALL_LOOKS
    assert decided(local(), seen(), NOW) == AgentDecision((), first)
    assert decided(local(), seen(), first).actions == (do.LookAtSteps(),)
    again = decided(local(pace=Pace(first)), seen(), first)
    assert again == AgentDecision((), first + TIMEOUT / STALL_LOOKS)


@pytest.mark.parametrize(
    "more",
    [{"attached": False}, {"left": True}, {"exits": (WorkerExit(0, 0, NOW),)}],
    ids=["no Checkpointer", "has left it", "one has ended"],
)
def test_only_workers_in_their_loop_are_looked_at(more: dict[str, object]) -> None:
    assert do.LookAtSteps() not in decided(local(**more), seen(), NOW + 100).actions


def test_without_a_stall_time_nobody_looks() -> None:
    assert decided(local(), seen(timeout=0.0), NOW + 1e6).actions == (do.Listen(),)  # for people


def test_a_stall_is_dumped_then_ended_then_reported() -> None:
    pace = Pace(NOW, (5, 5), STALL_LOOKS)
    assert decided(local(pace=pace), seen(), NOW).actions == (do.DumpStacks(),)
    dumped = local(pace=pace, dumped_at=NOW)
    assert decided(dumped, seen(), NOW) == AgentDecision((), NOW + DUMP_WITHIN)
    ended = decided(dumped, seen(), NOW + DUMP_WITHIN)
    assert ended.actions == (do.KillWorkers(), do.ReportStall(ROUND))


def test_a_node_without_etcd_ends_its_stalled_workers_and_reports_them_later() -> None:
    stalled = {"pace": Pace(NOW, (5, 5), STALL_LOOKS), "dumped_at": NOW}
    alone = seen(healthy=False)
    assert decided(local(**stalled), alone, NOW + DUMP_WITHIN).actions == (do.KillWorkers(),)
    killed = local(**stalled, killed=True, alive=frozenset())
    assert decided(killed, alone, NOW + 60) == AgentDecision()
    assert decided(killed, seen(), NOW + 60).actions == (do.ReportStall(ROUND),)


def test_other_nodes_dump_theirs_before_the_next_round() -> None:
    stalled = seen(after("stall"))
    assert do.DumpStacks() in decided(local(), stalled, NOW).actions
    dumped = local(dumped_at=NOW)
    assert do.KillWorkers() not in decided(dumped, stalled, NOW).actions
    assert do.KillWorkers() in decided(dumped, stalled, NOW + DUMP_WITHIN).actions


@pytest.mark.parametrize("cause", ["worker", "loss", "arrival"])
def test_workers_of_an_old_round_are_killed_at_once(cause: Cause) -> None:
    killed = do.KillWorkers(but_failing=cause == "worker")
    assert decided(local(), seen(after(cause)), NOW).actions[0] == killed


@pytest.mark.parametrize("cause", ["worker", "stall", "loss", "arrival"])
def test_a_failed_round_has_gpus_looked_at_where_no_failure_was_seen_yet(cause: Cause) -> None:
    """Peers may tell of their failures before the agent of the sick GPU sees its own."""
    on_gpus = replace(local(), health=NodeHealth(gpus=2))
    asked = do.ExamineGpus(ROUND.incarnation)
    fails = cause in ("worker", "stall")
    assert (asked in decided(on_gpus, seen(after(cause)), NOW).actions) == fails
    assert asked not in decided(local(), seen(after(cause)), NOW).actions
    told = observe(on_gpus, ExaminationStarted(ROUND.incarnation), NOW)
    assert asked not in decided(told, seen(after(cause)), NOW).actions, "once"


# -- ends -----------------------------------------------------------------------------------------


def test_what_a_worker_left_behind_keeps_it_alive_but_tells_its_end() -> None:
    ended = observe(local(), Exited("r1/1", 1, gone=False), NOW)
    assert ended.workers is not None
    assert (ended.workers.exits, ended.workers.alive) == ((WorkerExit(1, 1, NOW),), WORKERS.alive)
    kill = do.KillWorkers(but_failing=True)
    assert decided(ended, seen(), NOW).actions == (kill, do.ReportFailure(ROUND))
    gone = observe(ended, Exited("r1/1", 1), NOW + 1)
    assert gone.workers is not None
    assert (gone.workers.exits, gone.workers.alive) == (
        (WorkerExit(1, 1, NOW),),
        frozenset({"r1/0"}),
    )


def test_a_failure_is_acted_on_before_its_worker_has_ended() -> None:
    told = observe(local(), WorkerFailing("r1/1", 7), NOW)
    assert told.workers is not None
    assert told.workers.exits == (WorkerExit(1, 7, NOW),)
    assert told.workers.alive == WORKERS.alive
    kill = do.KillWorkers(but_failing=True)
    assert decided(told, seen(), NOW).actions == (kill, do.ReportFailure(ROUND))
    # Killed while it finalizes, or ended otherwise: it was told already.
    gone = observe(told, Exited("r1/1", -9), NOW + 1)
    assert gone.workers is not None
    assert gone.workers.exits == told.workers.exits and gone.workers.alive == {"r1/0"}


def test_what_has_failed_may_end_by_itself_unless_a_loss_forms_the_next_round() -> None:
    ends = local(killed=True, failed=True, failing=frozenset({"r1/1"}), kill_at=NOW + 10)
    assert do.KillWorkers() not in decided(ends, seen(after("worker")), NOW).actions
    assert do.KillWorkers() in decided(ends, seen(after("worker")), NOW + 10).actions
    assert do.KillWorkers() in decided(ends, seen(after("loss")), NOW).actions


def test_a_worker_that_cannot_be_ended_makes_its_node_leave() -> None:
    killed = local(killed=True, gone_by=NOW + GONE_WITHIN)
    assert decided(killed, seen(), NOW) == AgentDecision((), NOW + GONE_WITHIN)
    (exit_,) = decided(killed, seen(), NOW + GONE_WITHIN).actions
    assert isinstance(exit_, do.Exit) and exit_.code == STUCK
    assert "rank 2, 3 cannot be ended" in exit_.reason


def test_what_cannot_be_ended_after_its_worker_makes_the_node_leave_too() -> None:
    ended = observe(local(), Exited("r1/1", 0, gone=False), NOW)
    (exit_,) = decided(ended, seen(), NOW + GONE_WITHIN).actions
    assert isinstance(exit_, do.Exit) and "rank" in exit_.reason


def test_what_was_asked_to_end_has_its_grace_first() -> None:
    asked = local(killed=True, kill_at=NOW + 60)
    ended = observe(asked, Exited("r1/1", 0, gone=False), NOW)
    assert decided(ended, seen(), NOW + 59) == AgentDecision((), NOW + 60)
    assert decided(ended, seen(), NOW + 60).actions == (do.KillWorkers(signal.SIGKILL),)


# -- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commit", "told"),
    [
        (Commit(1, 30), "leaves after step 30, which is committed"),
        (Commit(1, 20), "leaves after step 30; the newest commit is step 20"),
        (None, "leaves after step 30; nothing was committed"),
    ],
)
def test_a_node_that_leaves_says_whether_its_last_step_is_committed(
    commit: Commit | None, told: str
) -> None:
    gone = changed(local(), workers=None, leaving=15, left=True, step=30, commit=commit)
    without = replace(ROUND, members=MEMBERS[:1])
    assert decided(gone, seen(without), NOW).actions == (do.Say("left", told), do.Exit(128 + 15))
