"""Causes a fixed sequence of real interruptions while a job trains (`up --drill`).

The job trains on the local cloud.

`next_injection` (pure) decides, from the published status and what was done, what to do now.
`Drill` carries it out. The order is fixed. The nodes are drawn from a seeded generator, so that a
failed drill can be repeated.

    notice   a worker node gets 15 seconds of notice, and is then killed
    loss     another worker node is killed without notice
    worker   one worker process is killed at a random moment within a step
    etcd     the process of the leading etcd member is killed

Each waits until the job has recovered from the one before. Then the requested number of nodes
trains again, without the interrupted node, and has run a few steps.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spotelastic.errors import Unavailable, UsageError
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import NodeStatus, Status

ORDER = (
    InterruptionKind.SPOT_INTERRUPTION,
    InterruptionKind.LOSS,
    InterruptionKind.WORKER,
    InterruptionKind.ETCD,
)
"""The interruptions, in order."""


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """What the drill does to a job of `nodes` nodes. Times are in seconds."""

    nodes: int
    first_step: int = 30
    """No interruption before this step."""
    apart: int = 15
    """Steps between the recovery from one interruption and the next."""
    notice: float = 15.0
    """Seconds of notice for the first interruption."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Injection:
    """One interruption to cause: of `node`, `delay` seconds from now."""

    kind: InterruptionKind
    node: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class InjectionResult:
    """An interruption that was caused, and the state of training at that time."""

    injection: Injection
    round: int
    step: int
    recovered_at: int | None = None
    """The step at which training was first seen to have recovered."""


class FaultInjector(Protocol):
    """The part of the local cloud's fault client that a drill needs."""

    def interrupt(self, instance: str, seconds: float) -> object: ...

    def kill(self, instance: str) -> object: ...

    def kill_process(self, instance: str, role: str) -> object: ...


# -- pure ----------------------------------------------------------------------------------------


def next_injection(
    status: Status, plan: DrillPlan, done: Sequence[InjectionResult]
) -> Injection | None:
    """Return what to do now, or None: too early, not recovered yet, or all done."""
    if len(done) == len(ORDER) or status.state != "running" or status.step < plan.first_step:
        return None
    training = _training(status)
    if len(training) < plan.nodes:
        return None
    if done and not _settled(status, plan, done[-1]):
        return None
    kind = ORDER[len(done)]
    draw = random.Random(f"{plan.seed}-{kind}")
    if kind is InterruptionKind.ETCD:
        leads = any(node.id == status.etcd_leader for node in status.nodes)
        return Injection(kind, status.etcd_leader) if leads else None
    struck = {each.injection.node for each in done}
    candidates = [node.id for node in training if node.id not in struck]
    if not candidates or len(training) < 2:
        return None
    victim = draw.choice(candidates)
    delay = draw.uniform(0.0, status.step_time) if kind is InterruptionKind.WORKER else 0.0
    return Injection(kind, victim, delay)


def observe(
    status: Status, plan: DrillPlan, done: Sequence[InjectionResult]
) -> tuple[InjectionResult, ...]:
    """Return `done`, with the last one marked as recovered once the status shows it."""
    if not done or done[-1].recovered_at is not None or not recovered(status, plan, done[-1]):
        return tuple(done)
    return (*done[:-1], replace(done[-1], recovered_at=status.step))


def recovered(status: Status, plan: DrillPlan, last: InjectionResult) -> bool:
    """Whether everything that the injection broke works again."""
    training = _training(status)
    if len(training) < plan.nodes:
        return False
    match last.injection.kind:
        case InterruptionKind.SPOT_INTERRUPTION | InterruptionKind.LOSS:
            gone = all(node.id != last.injection.node for node in training)
            return gone and status.round > last.round
        case InterruptionKind.WORKER:
            return status.round > last.round
        case _:
            return status.step > last.step


def _settled(status: Status, plan: DrillPlan, last: InjectionResult) -> bool:
    return last.recovered_at is not None and status.step >= last.recovered_at + plan.apart


def _training(status: Status) -> list[NodeStatus]:
    return [
        node
        for node in status.nodes
        if node.role == "worker" and node.state == "training" and node.ranks
    ]


# -- effects -------------------------------------------------------------------------------------


class Drill:
    """Causes the interruptions of a plan, as each status that it is fed permits."""

    def __init__(
        self,
        plan: DrillPlan,
        faults: FaultInjector,
        say: Callable[[str], None],
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._plan = plan
        self._faults = faults
        self._say = say
        self._wait = wait
        self._complaint = ""
        self.done: tuple[InjectionResult, ...] = ()

    @property
    def missing(self) -> tuple[InterruptionKind, ...]:
        """The interruptions for which training ended too early."""
        return ORDER[len(self.done) :]

    def feed(self, status: Status) -> None:
        """Look at a new status, and act on it."""
        self.done = observe(status, self._plan, self.done)
        injection = next_injection(status, self._plan, self.done)
        if injection is None:
            return
        try:
            self._cause(injection)
        except (UsageError, Unavailable) as error:
            # The node has changed since the status was written; a later status will show it.
            self._complain(f"drill: not yet: {error}")
            return
        self.done = (*self.done, InjectionResult(injection, status.round, status.step))
        self._say(f"drill, step {status.step}: {self._story(injection)}")

    def _cause(self, injection: Injection) -> None:
        match injection.kind:
            case InterruptionKind.SPOT_INTERRUPTION:
                self._faults.interrupt(injection.node, self._plan.notice)
            case InterruptionKind.LOSS:
                self._faults.kill(injection.node)
            case InterruptionKind.WORKER:
                self._wait(injection.delay)
                self._faults.kill_process(injection.node, "se-worker-0")
            case InterruptionKind.ETCD:
                self._faults.kill_process(injection.node, "etcd")

    def _story(self, injection: Injection) -> str:
        node, warning = injection.node, self._plan.notice
        return {
            InterruptionKind.SPOT_INTERRUPTION: f"{node} has notice of {warning:.0f} s",
            InterruptionKind.LOSS: f"{node} was killed without notice",
            InterruptionKind.WORKER: f"the worker process on {node} was killed",
            InterruptionKind.ETCD: f"the leading etcd member, on {node}, was killed",
        }[injection.kind]

    def _complain(self, line: str) -> None:
        if line != self._complaint:
            self._complaint = line
            self._say(line)
