"""What a node tells of itself."""

from dataclasses import replace

from msgspec import structs
from spotelastic_checkpoints.types import Commit, DaemonStatus, TimedValue, WorkerStep
from support.simulation.node_state import changed, node_state

from spotelastic.agent.observe import observe
from spotelastic.agent.state.events import GpusMeasured
from spotelastic.agent.state.node_progress import progress
from spotelastic.agent.state.values import NEW, Workers
from spotelastic.model.gpu import GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice
from spotelastic.model.progress import GpuUse
from spotelastic.rendezvous.duties.answers import highest

WORKERS = Workers("r2", 2, 0, 1, 5.0, frozenset())
STATUS = DaemonStatus(
    "",
    (),
    Commit(1, 60),
    (
        WorkerStep(0, 0, 91, 0.5, 0.0, 0.0, attached=True),
        WorkerStep(1, 1, 92, 0.4, 0.0, 0.0, attached=True, stall=0.1),
    ),
)


def test_steps_are_told_with_the_round_that_executed_them() -> None:
    told = progress("a", node_state(workers=WORKERS), STATUS, 10.0, "")
    assert (told.round, told.step, told.step_time, told.stall) == (2, 92, 0.5, 0.1)
    # They are of a round that has ended, and the workers of the next are not started yet.
    assert progress("a", NEW, STATUS, 10.0, "").round == 0


def test_a_node_is_as_slow_as_its_slowest_worker_once_all_have_measured() -> None:
    first, second = STATUS.workers
    fast = structs.replace(first, measured=5, own_time=0.1, waiting_time=0.4)
    slow = structs.replace(second, measured=4, own_time=0.3, waiting_time=0.2)

    def told(*workers: WorkerStep) -> tuple[int, float, float]:
        found = progress("a", NEW, structs.replace(STATUS, workers=workers), 10.0, "")
        return found.measured, found.own_time, found.waiting_time

    assert told(fast, slow) == (4, 0.3, 0.2)
    assert told(fast, structs.replace(slow, measured=5)) == (5, 0.3, 0.2)
    assert told(fast, second)[0] == 0
    assert told() == (0, 0.0, 0.0)


def test_the_newest_commit_is_told_whoever_knows_of_it() -> None:
    local = node_state(commit=Commit(1, 70))
    assert progress("a", local, STATUS, 10.0, "").committed == 70
    assert progress("a", changed(local, commit=Commit(1, 50)), STATUS, 10.0, "").committed == 60


def test_a_script_that_goes_back_is_no_further_than_it_says() -> None:
    """Or a step to save would be agreed on that it does not come to for hours."""
    resumed, (first, second) = 2000, STATUS.workers
    assert highest(STATUS.workers, resumed) == 92
    assert highest((first, structs.replace(second, step=0)), resumed) == 2000, (
        "it has not restored yet"
    )
    assert highest((), resumed) == 2000
    assert highest((), 0) == 0


def test_a_node_that_may_be_interrupted_soon_says_so() -> None:
    notice = Notice(InterruptionKind.REBALANCE, "a", "imds", 1.0, 1.0, None)
    assert progress("a", node_state(notice=notice), STATUS, 10.0, "").at_risk
    assert progress(
        "a",
        node_state(notice=replace(notice, kind=InterruptionKind.SPOT_INTERRUPTION)),
        STATUS,
        10.0,
        "",
    ).at_risk
    assert not progress(
        "a", node_state(notice=replace(notice, kind=InterruptionKind.LEAVE)), STATUS, 10.0, ""
    ).at_risk


def test_the_node_of_rank_0_tells_what_the_script_logs_and_each_how_busy_its_gpus_are() -> None:
    first, second = STATUS.workers
    logged = {"lr": TimedValue(5.0, 0.1)}
    use = GpuUse(2, 0.5, 1, 4)
    local = node_state(use=use)
    both = (structs.replace(second, logged={"lr": TimedValue(9.0, 7.0)}), first)
    others = structs.replace(STATUS, workers=both)
    assert progress("a", local, others, 10.0, "").logged == {}, "rank 0 has logged nothing"
    told = structs.replace(STATUS, workers=(second, structs.replace(first, logged=logged)))
    assert (found := progress("a", local, told, 10.0, "")).logged == logged
    assert found.gpu == use
    assert progress("a", NEW, STATUS, 10.0, "").gpu is None


def test_how_busy_the_gpus_are_is_no_fault_and_ends_none() -> None:
    use, fault = GpuUse(2, 0.0, 0, 4), GpuFault("it is lost", "kernel", "xid 79")
    local = observe(node_state(fault=fault), GpusMeasured(use), 5.0)
    assert (local.health.use, local.health.fault) == (use, fault)
    assert observe(local, GpusMeasured(None), 6.0).health.use is None
