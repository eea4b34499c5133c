"""The agent's decisions about workers that rest: who enters a round, who is ended, what is told."""

import math
from dataclasses import replace

import pytest
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.types import Holder, Resume, StepPoint
from support.simulation.node_state import changed, node_state

from spotelastic.agent import actions as do
from spotelastic.agent.decide import AgentDecision, decide
from spotelastic.agent.observe import observe
from spotelastic.agent.state import events
from spotelastic.agent.state.values import NodeState, RestingWorkers, WorkerExit, Workers
from spotelastic.agent.state.worker_changes import (
    ANSWER_WITHIN,
    ASK_EVERY,
    PRESENT_WITHIN,
    REST_WITHIN,
    SAVED_WITHIN,
)
from spotelastic.model.in_place import Standing
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.model.round import InPlace, Member, Round
from spotelastic.rendezvous.view import RunState

NOW = 1000.0
NODE = Node("b", "inc-b", "10.0.0.2", "", Fingerprint("3.11", "2.13"), "10.0.0.2:1")
MEMBERS = (
    Member("a", "inc-a", 0, "10.0.0.1", "", 2),
    Member("b", "inc-b", 1, "10.0.0.2", "", 2),
)
ROUND = Round(1, "r1", "started", MEMBERS, "start", "", store="10.0.0.1:5", epoch=1)
NEXT = replace(ROUND, number=2, incarnation="r2", phase="proposed", parent="r1", cause="loss")
BOTH = frozenset({"r1/0", "r1/1"})
WORKERS = Workers("r1", 1, 2, 1, NOW, BOTH, can_rest=True, listening=frozenset({0, 1}))
RESTED = replace(WORKERS, rested={0: Standing(7), 1: Standing(7)})
HELD = Resume("memory", 7, "r1", "layout", (Holder("a", "a:1", (0, 1), whole=True),))


def local(**values: object) -> NodeState:
    common = {
        "node": NODE,
        "fingerprint": NODE.fingerprint,
        "zygote": True,
        "daemon": NODE.daemon,
        "registered": True,
        "told_at": math.inf,
        "acknowledged": ("r2", "ready", 0),
    }
    return node_state(**{**common, **values})


def resting(workers: Workers = RESTED, *promised: str) -> RestingWorkers:
    return RestingWorkers(workers, frozenset(promised))


def decided(state: NodeState, round_: Round, now: float = NOW) -> AgentDecision:
    settings = Settings(2, 3, workers=2)
    seen = RunState(settings=settings, round=round_, round_at=NOW, holder="a")
    return decide(state, seen, now, lambda: "new")


def kinds(decision: AgentDecision) -> set[type]:
    return {type(action) for action in decision.actions}


def started(how: InPlace, resume: Resume = HELD) -> Round:
    return replace(NEXT, phase="started", in_place=how, resume=resume)


# -- coming to rest -------------------------------------------------------------------------------


def test_workers_are_asked_to_rest_and_killed_if_they_do_not_in_time() -> None:
    asking = decided(local(workers=WORKERS), NEXT)
    assert do.RestWorkers() in asking.actions and do.KillWorkers not in kinds(asking)
    asked = observe(local(workers=WORKERS), events.RestRequested(), NOW)
    waiting = decided(asked, NEXT, NOW + REST_WITHIN / 2)
    assert not {do.RestWorkers, do.KillWorkers} & kinds(waiting)
    assert waiting.wake_at == NOW + REST_WITHIN
    assert do.KillWorkers in kinds(decided(asked, NEXT, NOW + REST_WITHIN))
    assert do.EndRound(rests=True) in decided(local(workers=RESTED), NEXT).actions


@pytest.mark.parametrize(("step_time", "within"), [(4.0, REST_WITHIN + 4.0), (60.0, SAVED_WITHIN)])
def test_workers_have_the_time_of_a_step_more_to_rest(step_time: float, within: float) -> None:
    asked = observe(local(workers=WORKERS, step_time=step_time), events.RestRequested(), NOW)
    assert decided(asked, NEXT, NOW + within - 0.1).wake_at == NOW + within
    assert do.KillWorkers in kinds(decided(asked, NEXT, NOW + within))


@pytest.mark.parametrize(
    ("workers", "round_"),
    [
        ({"listening": frozenset({0})}, NEXT),
        ({"exits": (WorkerExit(0, 1, NOW),)}, NEXT),
        ({"left": True}, NEXT),
        ({}, replace(NEXT, cause="settings")),
        ({}, replace(NEXT, parent="r0")),
        ({}, replace(NEXT, members=MEMBERS[:1])),
    ],
    ids=["one cannot", "one failed", "one has left", "new code", "another history", "left out"],
)
def test_others_are_killed_at_once(workers: dict[str, object], round_: Round) -> None:
    running = local(workers=replace(WORKERS, **workers))  # type: ignore[arg-type]
    taken = kinds(decided(running, round_))
    assert do.KillWorkers in taken and do.RestWorkers not in taken


# -- what becomes of workers that rest ------------------------------------------------------------


@pytest.mark.parametrize("how", ["keep", "restore"])
def test_they_enter_the_round_after_their_own(how: InPlace) -> None:
    round_ = started(how)
    assert do.EnterRound(round_, MEMBERS[1]) in decided(local(resting=resting()), round_).actions
    assert do.EndRest not in kinds(decided(local(resting=resting()), NEXT))


@pytest.mark.parametrize(
    "round_",
    [
        started(""),
        replace(started("keep"), parent="r0"),
        replace(started("keep"), members=MEMBERS[:1]),
        replace(NEXT, cause="settings"),
    ],
    ids=["new processes", "another history", "left out", "new code"],
)
def test_they_are_ended_where_no_round_takes_them_up(round_: Round) -> None:
    taken = kinds(decided(local(resting=resting()), round_))
    assert do.EndRest in taken and do.EnterRound not in taken


def test_who_has_lost_its_connection_is_ended_before_a_round_waits_for_it() -> None:
    deaf = observe(local(resting=resting()), events.WorkerDeaf(1), NOW)
    assert do.EndRest in kinds(decided(deaf, NEXT))


def test_a_round_that_nobody_here_has_entered_takes_no_state_away() -> None:
    """It was over before this node saw it start. Nobody made a step in it."""
    third = replace(NEXT, number=3, incarnation="r3", parent="r2", parent_from_memory=True)
    state = local(resting=resting())
    assert do.EndRest in kinds(decided(state, third)), "it has promised nothing for that round"
    told = events.Acknowledged("r2", "ready", 0, rests=True)
    promised = observe(state, told, NOW)
    assert do.EndRest not in kinds(decided(promised, third))
    other = replace(third, parent_from_memory=False)
    assert do.EndRest in kinds(decided(promised, other)), "the others may have another history"


def test_the_end_of_one_ends_the_others_and_is_told_if_the_round_counts_on_them() -> None:
    kept = changed(local(resting=resting()), kept="r2")
    one_ended = observe(kept, events.Exited("r1/0", -9), NOW)
    assert do.KillWorkers in kinds(decided(one_ended, NEXT))
    none_left = changed(kept, resting=None)
    round_ = started("keep")
    assert do.ReportNotKept(round_) in decided(none_left, round_).actions
    assert do.StartWorkers not in kinds(decided(none_left, round_))


def test_a_new_process_enters_only_a_round_that_it_can_restore() -> None:
    comes = local()
    assert do.StartWorkers in kinds(decided(comes, started("keep")))
    nobody_holds = started("keep", Resume("memory", 8, "r1"))
    taken = kinds(decided(comes, nobody_holds))
    assert do.StartWorkers not in taken and do.ReportNotKept in taken


# -- failures -------------------------------------------------------------------------------------


def test_a_worker_s_own_failure_is_told_also_after_that_of_a_collective() -> None:
    broken = observe(
        local(workers=WORKERS), events.WorkerRests("r1", 1, Standing(7), "lost a peer"), NOW
    )
    assert do.ReportFailure(ROUND) in decided(broken, ROUND).actions
    told = observe(broken, events.FailureReported(broken=True), NOW)
    assert do.ReportFailure not in kinds(decided(told, ROUND))
    failed = observe(told, events.WorkerFailing("r1/0", 1), NOW)
    again = decided(failed, ROUND)
    assert do.ReportFailure(ROUND) in again.actions
    later = decided(failed, started("keep"))
    assert do.ReportFailure(started("keep")) in later.actions, "also if the round is over by then"
    over = observe(failed, events.FailureReported(), NOW)
    assert do.ReportFailure not in kinds(decided(over, ROUND))


def test_an_end_without_an_error_is_told_where_others_have_lost_its_worker_by_it() -> None:
    """`os._exit(0)` within a step: the others tell of a peer, and nobody else of this one."""
    state = local(workers=replace(WORKERS, attached=True))
    ended = observe(state, events.Exited("r1/0", 0), NOW)
    failed = replace(started("keep"), cause="worker")
    assert do.ReportFailure(failed) in decided(ended, failed).actions
    told = observe(ended, events.FailureReported(), NOW)
    assert do.ReportFailure not in kinds(decided(told, failed)), "once"
    assert do.ReportFailure not in kinds(decided(ended, ROUND)), "all may end so"
    assert do.ReportFailure not in kinds(decided(ended, started("keep"))), "a node was lost"
    left = observe(state, messages.WorkerLeft(2, 7, clean=True), NOW)
    finished = observe(left, events.Exited("r1/0", 0), NOW)
    assert do.ReportFailure not in kinds(decided(finished, failed)), "it had closed it"


# -- workers that prepare -------------------------------------------------------------------------

BESIDE = replace(ROUND, members=MEMBERS[:1], rests=True)


def test_a_node_outside_has_its_workers_prepare_once() -> None:
    outside = changed(local(), node=replace(NODE, prepares=True))
    assert do.PrepareWorkers(BESIDE) in decided(outside, BESIDE).actions
    unable = replace(BESIDE, rests=False)
    assert do.PrepareWorkers not in kinds(decided(outside, unable))
    said = changed(outside, said=frozenset({"prepared r1"}))
    done = decided(said, BESIDE)
    assert do.PrepareWorkers not in kinds(done)
    assert do.Register(prepares=False) in done.actions, "it counts as arrived"


def test_a_node_that_will_be_gone_prepares_nothing() -> None:
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "b", "imds", NOW, NOW, NOW + 60)
    doomed = changed(local(), notice=notice, drained=True)
    assert do.PrepareWorkers not in kinds(decided(doomed, BESIDE))


def test_a_node_whose_workers_prepare_offers_its_slots() -> None:
    alone = Workers("", 0, 0, 0, NOW, frozenset({"beside-r1/0", "beside-r1/1"}))
    preparing = changed(local(workers=alone), node=replace(NODE, prepares=True))
    assert do.OfferSlots("r1") in decided(preparing, BESIDE).actions


@pytest.mark.parametrize("asked_first", [True, False])
def test_workers_that_save_before_they_rest_have_more_time_for_it(asked_first: bool) -> None:
    told: list[events.LocalEvent] = [
        events.RestRequested(),
        events.WorkerPresent("r1", 0, saves=True),
    ]
    state = local(workers=WORKERS)
    for event in told if asked_first else reversed(told):
        state = observe(state, event, NOW)
    assert do.KillWorkers() not in decided(state, NEXT, NOW + SAVED_WITHIN - 0.1).actions
    assert any(
        isinstance(action, do.KillWorkers)
        for action in decided(state, NEXT, NOW + SAVED_WITHIN).actions
    )


# -- workers that do not answer -------------------------------------------------------------------

ENTERED = events.WorkersEntered("r2", 2, 2, 1, 7)
STARTED = replace(NEXT, phase="started", in_place="keep", resume=Resume("memory", 7, "r1"))


def entered() -> NodeState:
    """Workers that have just been told of the round."""
    return observe(local(resting=resting(), spare="store/spare-1"), ENTERED, NOW)


def asked(state: NodeState) -> NodeState:
    """Both have answered at once, and are asked again, because none has made a step."""
    for rank in (0, 1):
        state = observe(state, events.WorkerPresent("r2", rank), NOW)
    assert do.AskWorkers() not in decided(state, STARTED, NOW + ASK_EVERY / 2).actions
    assert do.AskWorkers() in decided(state, STARTED, NOW + ASK_EVERY).actions
    return observe(state, events.WorkersAsked(), NOW + ASK_EVERY)


def is_replaced(state: NodeState, rank: int, at: float) -> None:
    assert do.KillWorkers() not in decided(state, STARTED, at - 0.1).actions
    assert decided(state, STARTED, at - 0.1).wake_at <= at
    told = do.ReportNotKept(STARTED, f"rank {rank} did not answer when the round began")
    actions = decided(state, STARTED, at).actions
    assert actions.index(do.KillWorkers()) < actions.index(told)
    killed = observe(state, events.WorkersKilled(), at)
    assert do.KillWorkers() not in decided(killed, STARTED, at).actions
    assert told in decided(killed, STARTED, at).actions, "until it is written"
    said = observe(killed, events.Said("not kept r2"), at)
    assert told not in decided(said, STARTED, at + 100).actions


def test_a_worker_that_is_frozen_while_it_rests_is_replaced() -> None:
    state = observe(entered(), events.WorkerPresent("r2", 1), NOW)
    is_replaced(state, 2, NOW + PRESENT_WITHIN)
    late = observe(entered(), events.WorkerPresent("r1", 0), NOW)
    assert late.workers is not None and late.workers.awaited == {0, 1}, "of another round"


def test_a_worker_that_is_frozen_while_it_enters_is_replaced() -> None:
    state = observe(asked(entered()), events.WorkerPresent("r2", 0), NOW + ASK_EVERY)
    is_replaced(state, 3, NOW + ASK_EVERY + ANSWER_WITHIN)


@pytest.mark.parametrize(
    ("losses", "since"),
    [
        ((1.0, None, math.nan, None, math.inf), 3),
        ((math.nan, 1.0, None), 0),
        ((math.nan, 1.0, -math.inf), 3),
        ((None, None), 0),
    ],
)
def test_an_agent_knows_since_when_losses_are_not_finite(
    losses: tuple[float | None, ...], since: int
) -> None:
    points = [StepPoint(step, loss, NOW) for step, loss in enumerate(losses, 1)]
    at_once = observe(entered(), messages.Points(tuple(points)), NOW)
    by_one = entered()
    for point in points:
        by_one = observe(by_one, messages.Points((point,)), NOW)
    assert at_once.reports.not_finite == by_one.reports.not_finite == since


def test_workers_are_not_asked_once_they_have_made_a_step_or_have_left_their_loop() -> None:
    state = entered()
    for rank in (0, 1):
        state = observe(state, events.WorkerPresent("r2", rank), NOW)
    late = NOW + 100
    assert do.AskWorkers() in decided(state, STARTED, late).actions
    stepped = observe(state, messages.Points((StepPoint(8, 0.1, NOW),)), NOW)
    assert do.AskWorkers() not in decided(stepped, STARTED, late).actions
    left = observe(state, messages.WorkerLeft(0, 8, clean=True), NOW)
    assert do.AskWorkers() not in decided(left, STARTED, late).actions
    deaf = asked(state)
    for rank in (0, 1):
        deaf = observe(deaf, events.WorkerDeaf(rank), NOW)
    later = decided(deaf, STARTED, late).actions
    assert do.KillWorkers() not in later and do.AskWorkers() not in later
