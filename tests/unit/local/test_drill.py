"""The drill's order and patience, against a job that is a list of statuses."""

from dataclasses import replace

from spotelastic.errors import UsageError
from spotelastic.local.drill import (
    ORDER,
    Drill,
    DrillPlan,
    Injection,
    InjectionResult,
    next_injection,
    recovered,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import NodeStatus, Status

PLAN = DrillPlan(nodes=3)


def status(
    step: int, nodes: str = "abc", *, round: int = 1, draining: str = "", leader: str = "etcd-a"
) -> Status:
    workers = tuple(
        NodeStatus(
            name, "worker", "draining" if name in draining else "training", "z", "1.2.3.4", (rank,)
        )
        for rank, name in enumerate(nodes)
    )
    control = NodeStatus("etcd-a", "control", "leading", "z", "1.2.3.5")
    return Status(
        name="demo",
        state="running",
        at=0.0,
        round=round,
        step=step,
        step_time=0.2,
        etcd_leader=leader,
        nodes=(*workers, control),
    )


def done(kind: str, node: str, *, recovered_at: int | None = None) -> InjectionResult:
    return InjectionResult(
        Injection(InterruptionKind(kind), node), round=1, step=30, recovered_at=recovered_at
    )


def test_nothing_happens_before_the_first_step_or_without_all_nodes() -> None:
    assert next_injection(status(29), PLAN, ()) is None
    assert next_injection(status(60, "ab"), PLAN, ()) is None
    assert next_injection(status(60, "abc", draining="c"), PLAN, ()) is None
    assert next_injection(replace(status(60), state="succeeded"), PLAN, ()) is None


def test_the_first_is_a_notice_to_a_node_that_trains() -> None:
    injection = next_injection(status(30), PLAN, ())
    assert injection is not None
    assert injection.kind == "spot_interruption"
    assert injection.node in {"a", "b", "c"}


def test_victims_depend_on_the_seed_alone() -> None:
    draws = [next_injection(status(30), replace(PLAN, seed=seed), ()) for seed in range(20)]
    assert draws == [next_injection(status(90), replace(PLAN, seed=seed), ()) for seed in range(20)]
    assert {draw.node for draw in draws if draw} == {"a", "b", "c"}


def test_a_node_in_training_alone_is_left_in_peace() -> None:
    assert next_injection(status(50, "a"), DrillPlan(nodes=1), ()) is None


def test_a_lost_node_counts_as_recovered_only_with_its_replacement_in_a_newer_round() -> None:
    last = done("loss", "b")
    assert not recovered(status(60, "abc", round=2), PLAN, last)
    assert not recovered(status(60, "ac", round=2), PLAN, last)
    assert not recovered(status(60, "acd", round=1), PLAN, last)
    assert recovered(status(60, "acd", round=3), PLAN, last)


def test_a_worker_is_overcome_on_the_same_nodes_in_a_newer_round() -> None:
    assert not recovered(status(60, round=1), PLAN, done("worker", "a"))
    assert recovered(status(60, round=2), PLAN, done("worker", "a"))


def test_the_next_waits_for_a_few_steps_after_the_recovery() -> None:
    history = (done("spot_interruption", "b", recovered_at=60),)
    assert next_injection(status(74, "acd", round=3), PLAN, history) is None
    injection = next_injection(status(75, "acd", round=3), PLAN, history)
    assert injection is not None
    assert injection.kind == "loss"


def test_the_killed_worker_dies_inside_a_step() -> None:
    history = (done("spot_interruption", "x", recovered_at=1), done("loss", "y", recovered_at=1))
    injection = next_injection(status(90), PLAN, history)
    assert injection is not None
    assert injection.kind == "worker"
    assert 0.0 < injection.delay < 0.2


def test_the_etcd_member_is_named_by_the_status() -> None:
    history = tuple(
        done(kind, name, recovered_at=1) for kind, name in zip(ORDER, "xyz", strict=False)
    )
    assert next_injection(status(90, leader=""), PLAN, history) is None
    assert next_injection(status(90), PLAN, history) == Injection(InterruptionKind.ETCD, "etcd-a")


class Recorder:
    """Faults that are written down instead of caused."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def interrupt(self, instance: str, seconds: float) -> None:
        self.calls.append(("interrupt", instance, seconds))

    def kill(self, instance: str) -> None:
        self.calls.append(("kill", instance))

    def kill_process(self, instance: str, role: str) -> None:
        self.calls.append(("kill_process", instance, role))


class FakeJob:
    """A job that overcomes whatever is done to it, some steps later."""

    def __init__(self) -> None:
        self.nodes = ["a", "b", "c"]
        self.spare = iter("defgh")
        self.round = 1
        self.step = 0
        self.seen = 0

    def advance(self, faults: Recorder) -> Status:
        self.step += 5
        for call in faults.calls[self.seen :]:
            self.seen += 1
            if call[-1] == "etcd":
                continue
            self.round += 1
            if call[0] != "kill_process":
                self.nodes.remove(str(call[1]))
        if len(self.nodes) < 3 and self.step % 25 == 0:
            self.nodes.append(next(self.spare))
            self.round += 1
        return status(self.step, "".join(self.nodes), round=self.round)


def test_a_job_that_recovers_gets_each_interruption_once_and_in_order() -> None:
    faults, job, said, waited = Recorder(), FakeJob(), list[str](), list[float]()
    drill = Drill(PLAN, faults, said.append, waited.append)
    for _ in range(80):
        drill.feed(job.advance(faults))
    kinds = [call[0] if call[0] != "kill_process" else call[2] for call in faults.calls]
    assert kinds == ["interrupt", "kill", "se-worker-0", "etcd"]
    assert faults.calls[0][2] == 15.0
    assert len({call[1] for call in faults.calls}) == 4
    assert drill.missing == ()
    assert len(said) == 4
    assert len(waited) == 1


def test_what_training_ended_too_early_for_is_named() -> None:
    faults, job = Recorder(), FakeJob()
    drill = Drill(PLAN, faults, lambda line: None, lambda seconds: None)
    while not drill.done:
        drill.feed(job.advance(faults))
    assert drill.missing == ("loss", "worker", "etcd")


def test_a_victim_that_is_not_there_yet_is_tried_again() -> None:
    class Late(Recorder):
        def interrupt(self, instance: str, seconds: float) -> None:
            if not said:
                raise UsageError(f"instance {instance} is pending")
            super().interrupt(instance, seconds)

    faults, said = Late(), list[str]()
    drill = Drill(PLAN, faults, said.append, lambda seconds: None)
    drill.feed(status(40))
    assert (drill.done, faults.calls) == ((), [])
    drill.feed(status(45))
    assert [each.step for each in drill.done] == [45]
    assert len(faults.calls) == 1
