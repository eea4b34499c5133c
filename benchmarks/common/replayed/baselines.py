"""Computes how torchrun's elastic launcher and a full restart would have fared on the same trace.

Their constants are published or were measured (`benchmarks/recovery.py`). Where there is a choice,
they get the better one. Both stop for no more than a copy to save, at the scenario's checkpoint
interval, and read the newest checkpoint from the object store when they start. Neither uses
notices: a node trains until it is gone.
"""

import bisect
import math
from collections.abc import Sequence

from common.replayed import markets
from common.replayed.bills import both

from spotelastic.replay.outcome import (
    HOUR,
    Bill,
    ReplayOutcome,
    RunSpan,
    allowed_anywhere,
    judge,
)
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import Span, Trace

TORCHRUN = "torchrun"
"""Name of this policy in results."""
FULL_RESTART = "full restart"
"""Name of this policy in results; the number of nodes is added."""
AFTER_LOSS = 43.0
"""Seconds from the loss of a node to the first all-reduce under torchrun's defaults.

Measured on CPUs: keep-alive 3 x 5 s, last call 30 s, new processes.
"""
AFTER_ARRIVAL = 37.0
"""Seconds from the arrival of a node to the first all-reduce under torchrun's defaults."""
FAIL_OVER = "fail-over"
"""Name of this policy in results; the number of nodes is added."""
POLL = 15.0
"""Seconds between two looks of a full-restart manager at its cluster (SkyPilot's value)."""

Counts = Sequence[tuple[float, int]]
"""Number of nodes of a market from each time at which it changes."""


def torchrun(trace: Trace, scenario: Scenario) -> ReplayOutcome:
    """Return the outcome of torchrun with min to max nodes.

    Every change of membership restarts all workers from the last checkpoint.
    """
    stretches: list[RunSpan] = []
    members: list[Span] = []
    now, delay, step = 0.0, AFTER_ARRIVAL, 0
    while now < trace.length:
        members = _present(members, trace, scenario, now)
        change, lost = _next_change(members, trace, scenario, now)
        if len(members) >= scenario.min_nodes:
            begins = now + delay + scenario.machines.start + _fetched(scenario, step)
            stretch = _train(scenario, begins, min(change, trace.length), len(members), step)
            if stretch is not None:
                stretches.append(stretch)
                step = _committed(stretch, scenario)
        now, delay = change, AFTER_LOSS if lost else AFTER_ARRIVAL
    return judge(
        TORCHRUN,
        stretches,
        _group_bill(trace, scenario),
        allowed_anywhere((trace,), scenario),
        scenario,
    )


def full_restart(trace: Trace, scenario: Scenario) -> ReplayOutcome:
    """Return the outcome of a fixed number of nodes, the one that does best on this trace.

    A lost node ends them all. The job starts again on new ones as soon as the market has enough.
    """
    return _best_size(FULL_RESTART, (trace,), (scenario.machines.spot_usd,), scenario)


def fail_over(traces: Sequence[Trace], usd: Sequence[float], scenario: Scenario) -> ReplayOutcome:
    """Return the outcome of full restarts in whichever of several markets has enough nodes first,
    the cheapest of those; `usd` is each one's price for an hour of a node.

    It reads its checkpoint there as fast as elsewhere, pays nothing for that, and finds out for
    nothing where there are nodes.
    """
    return _best_size(FAIL_OVER, traces, usd, scenario)


def _best_size(
    name: str, traces: Sequence[Trace], usd: Sequence[float], scenario: Scenario
) -> ReplayOutcome:
    counts = [markets.counts(trace) for trace in traces]
    most = allowed_anywhere(traces, scenario)
    sizes = range(scenario.min_nodes, scenario.max_nodes + 1)
    outcomes = (
        judge(f"{name}, {size} nodes", *_fixed(size, traces, counts, usd, scenario), most, scenario)
        for size in sizes
    )
    return max(outcomes, key=lambda outcome: outcome.goodput)


def _fixed(
    size: int,
    traces: Sequence[Trace],
    counts: Sequence[Counts],
    usd: Sequence[float],
    scenario: Scenario,
) -> tuple[list[RunSpan], Bill]:
    stretches: list[RunSpan] = []
    machines, length = scenario.machines, traces[0].length
    now, step, paid = 0.0, 0, Bill()
    while True:
        launch, _, market = min(
            (_enough_at(size, its, now), usd[i], i) for i, its in enumerate(counts)
        )
        if launch >= length:
            break
        spans = traces[market].spans
        nodes = [span for span in spans if span.start <= launch < span.end][:size]
        lost = min(length, *(span.end for span in nodes))
        begins = launch + machines.boot + machines.cold + machines.start
        stretch = _train(scenario, begins + _fetched(scenario, step), lost, size, step)
        if stretch is not None:
            stretches.append(stretch)
            step = _committed(stretch, scenario)
        hours = size * (lost - launch) / HOUR
        paid = both(paid, Bill(hours, 0.0, hours * usd[market]))
        now = lost + POLL
    return stretches, paid


# -- training -------------------------------------------------------------------------------------


def _train(scenario: Scenario, begins: float, ends: float, nodes: int, step: int) -> RunSpan | None:
    """Return the span in which steps are executed; None where there is no first step."""
    if ends <= begins:
        return None
    steps = math.floor((ends - begins) / _mean_step(scenario))
    return RunSpan(begins, ends, nodes, step, step + steps)


def _mean_step(scenario: Scenario) -> float:
    """Return the seconds of a step with its share of a save."""
    return scenario.step + scenario.copied_within / scenario.schedule.checkpoint_every


def _committed(stretch: RunSpan, scenario: Scenario) -> int:
    """Return the newest step whose upload was complete when the span ended."""
    every = scenario.schedule.checkpoint_every
    upload = math.ceil(scenario.uploaded_within(stretch.nodes) / _mean_step(scenario))
    step = stretch.last - upload
    return max(stretch.first, step - step % every)


def _fetched(scenario: Scenario, step: int) -> float:
    return scenario.fetched_within() + scenario.copied_within if step else 0.0


# -- nodes ----------------------------------------------------------------------------------------


def _present(members: Sequence[Span], trace: Trace, scenario: Scenario, now: float) -> list[Span]:
    """Return members that are still there, then others in the order of their arrival, up to max."""
    boot = scenario.machines.boot
    kept = [span for span in members if span.end > now]
    others = (span for span in trace.spans if span.start + boot <= now < span.end)
    return [*kept, *(span for span in others if span not in kept)][: scenario.max_nodes]


def _next_change(
    members: Sequence[Span], trace: Trace, scenario: Scenario, now: float
) -> tuple[float, bool]:
    """Return when a member is lost (True) or a node arrives for which there is room (False)."""
    lost = min((span.end for span in members), default=math.inf)
    boot = scenario.machines.boot
    arrivals = (span.start + boot for span in trace.spans if now < span.start + boot < span.end)
    arrived = min(arrivals, default=math.inf) if len(members) < scenario.max_nodes else math.inf
    return (lost, True) if lost <= arrived else (arrived, False)


def _enough_at(size: int, counts: Counts, now: float) -> float:
    """Return the next time at which the market has `size` nodes; infinity for never."""
    at = bisect.bisect_right(counts, now, key=lambda change: change[0])
    if at and counts[at - 1][1] >= size:
        return now
    return next((moment for moment, there in counts[at:] if there >= size), math.inf)


def _group_bill(trace: Trace, scenario: Scenario) -> Bill:
    """Return the bill of a group that has as many nodes as the market has, up to max."""
    seconds = since = 0.0
    for change in [*markets.changes(trace), trace.length]:
        there = sum(span.start <= since < span.end for span in trace.spans)
        seconds += min(there, scenario.max_nodes) * (change - since)
        since = change
    hours = seconds / HOUR
    return Bill(hours, 0.0, hours * scenario.machines.spot_usd)
