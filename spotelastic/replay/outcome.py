"""Computes goodput, lost steps and cost of a replayed job from the times at which it trained."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spotelastic_checkpoints.types import Schedule

from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Trace

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class RunSpan:
    """A time in which the same nodes executed one step after another."""

    start: float
    """Seconds from the beginning of the trace."""
    end: float
    """Seconds from the beginning of the trace."""
    nodes: int
    first: int
    """The step that it resumed from."""
    last: int
    """The last step that it executed."""


@dataclass(frozen=True, slots=True)
class Bill:
    """The hours for which nodes were paid, and their price."""

    spot_hours: float = 0.0
    on_demand_hours: float = 0.0
    usd: float = 0.0

    @property
    def hours(self) -> float:
        """Node hours of both kinds."""
        return self.spot_hours + self.on_demand_hours


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """How a job fared under one policy."""

    policy: str
    """Name of the policy."""
    hours: float
    """Hours in which steps were executed."""
    goodput: float
    """Node time in steps that count, divided by the node time that the trace allows."""
    useful_node_hours: float
    """Node time in steps that count."""
    steps: int
    """The last step that was reached."""
    steps_lost: int
    """Steps that had to be executed again."""
    starts: int
    """How often training began or resumed."""
    stopped_hours: float
    """Hours without a step although there were enough nodes."""
    most_nodes: int
    """Largest number of nodes that trained at the same time."""
    schedule: Schedule
    """When it saved; the last schedule, where it changed."""
    bill: Bill
    paid: float
    """Node time in steps that count, divided by the node time that was paid for."""
    usd_per_node_hour: float
    """US dollars for each node hour that counts."""
    stretches: tuple[RunSpan, ...]
    """The times in which it trained."""


@dataclass(frozen=True, slots=True)
class UpperBound:
    """What a job that lost nothing and never stopped would have had of the trace.

    It has at most max nodes, and none while there are fewer than min. Each counts from its boot
    until its notice.
    """

    seconds: float
    """Seconds with at least min nodes."""
    node_seconds: float
    """Node seconds."""


def judge(
    policy: str, stretches: Sequence[RunSpan], bill: Bill, most: UpperBound, scenario: Scenario
) -> ReplayOutcome:
    """Compute the outcome of a policy, beside the most that was possible."""
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
    """Return, for each span, the number of its steps that no later one executed again."""
    counted = []
    earliest = math.inf
    for stretch in reversed(stretches):
        counted.append(max(0, int(min(stretch.last, earliest)) - stretch.first))
        earliest = min(earliest, stretch.first)
    return counted[::-1]


def allowed_anywhere(traces: Sequence[Trace], scenario: Scenario) -> UpperBound:
    """Compute the upper bound of several traces, of which the best one counts at each moment.

    A job that moves for nothing, in no time, would have that.
    """
    changes = sorted(
        change for market, trace in enumerate(traces) for change in _usable(trace, scenario, market)
    )
    seconds = node_seconds = since = 0.0
    there = [0] * len(traces)
    for at, market, change in changes:
        most = max(there)
        if most >= scenario.min_nodes:
            seconds += at - since
            node_seconds += (at - since) * min(most, scenario.max_nodes)
        there[market], since = there[market] + change, at
    return UpperBound(seconds, node_seconds)


def _usable(trace: Trace, scenario: Scenario, market: int) -> Iterator[tuple[float, int, int]]:
    """Yield when a node of this market can begin to train and when it has to end.

    Each item has the time, the market and the change.
    """
    for span in trace.spans:
        start = span.start + scenario.machines.boot
        end = min(span.end - scenario.notice, trace.length)
        if start < end:
            yield start, market, 1
            yield end, market, -1
