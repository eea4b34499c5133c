"""What became of a job under one policy, and what that is worth (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spotelastic_checkpoints.types import Schedule

from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class RunSpan:
    """A time in which the same nodes executed step after step."""

    start: float
    end: float
    nodes: int
    first: int
    """The step that it resumed from."""
    last: int


@dataclass(frozen=True, slots=True)
class Bill:
    """What was running, and its price."""

    spot_hours: float = 0.0
    on_demand_hours: float = 0.0
    usd: float = 0.0

    @property
    def hours(self) -> float:
        return self.spot_hours + self.on_demand_hours


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    policy: str
    hours: float
    """In which steps were executed."""
    goodput: float
    """Node time in steps that count, of the node time that the trace allows."""
    useful_node_hours: float
    steps: int
    """The last one that was reached."""
    steps_lost: int
    """Executed again."""
    starts: int
    """How often training began or went on."""
    stopped_hours: float
    """In which no step was executed although there were enough nodes."""
    most_nodes: int
    """That trained at a time."""
    schedule: Schedule
    """When it saved; in the end, where that changed."""
    bill: Bill
    paid: float
    """Node time in steps that count, of the node time that was paid for."""
    usd_per_node_hour: float
    """For each that was useful."""
    stretches: tuple[RunSpan, ...]


def judge(
    policy: str, stretches: Sequence[RunSpan], bill: Bill, trace: Trace, scenario: Scenario
) -> ReplayOutcome:
    most = allowed(trace, scenario)
    counted = kept(stretches)
    useful = sum(
        steps * scenario.step * stretch.nodes
        for stretch, steps in zip(stretches, counted, strict=True)
    )
    lost = sum(stretch.last - stretch.first for stretch in stretches) - sum(counted)
    trained = sum(stretch.end - stretch.start for stretch in stretches)
    return ReplayOutcome(
        policy,
        hours=trained / HOUR,
        goodput=useful / most.node_seconds if most.node_seconds else 0.0,
        useful_node_hours=useful / HOUR,
        steps=max((s.last for s in stretches), default=0),
        steps_lost=lost,
        starts=len(stretches),
        stopped_hours=max(0.0, most.seconds - trained) / HOUR,
        most_nodes=max((s.nodes for s in stretches), default=0),
        schedule=scenario.schedule,
        bill=bill,
        paid=useful / HOUR / bill.hours if bill.hours else 0.0,
        usd_per_node_hour=bill.usd / (useful / HOUR) if useful else 0.0,
        stretches=tuple(stretches),
    )


def kept(stretches: Sequence[RunSpan]) -> list[int]:
    """Steps of each stretch that no later one executed again."""
    counted = []
    earliest = math.inf
    for stretch in reversed(stretches):
        counted.append(max(0, int(min(stretch.last, earliest)) - stretch.first))
        earliest = min(earliest, stretch.first)
    return counted[::-1]


@dataclass(frozen=True, slots=True)
class UpperBound:
    """What a job that lost nothing and never stopped would have had of the trace: at most max
    nodes, nothing while there are fewer than min, each from its boot until its notice."""

    seconds: float
    """With at least min nodes."""
    node_seconds: float


def allowed(trace: Trace, scenario: Scenario) -> UpperBound:
    boot = scenario.machines.boot
    changes: list[tuple[float, int]] = []
    for span in trace.spans:
        end = min(span.end - scenario.notice, trace.length)
        if span.start + boot < end:
            changes += [(span.start + boot, 1), (end, -1)]
    seconds = node_seconds = since = 0.0
    there = 0
    for at, change in sorted(changes):
        if there >= scenario.min_nodes:
            seconds += at - since
            node_seconds += (at - since) * min(there, scenario.max_nodes)
        there, since = there + change, at
    return UpperBound(seconds, node_seconds)
