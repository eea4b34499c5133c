"""Replays a spot trace under spotelastic's own decisions, in virtual time."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spotelastic.controller.accounting.usage import Usage
from spotelastic.replay.market import ZONE, SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.outcome import Bill, ReplayOutcome, allowed_anywhere, judge
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.simulated_controller import SimulatedController
from spotelastic.replay.timeline import Timeline
from spotelastic.replay.trace import Trace

NAME = "spotelastic"
"""Name of this policy."""


def play(trace: Trace, scenario: Scenario) -> ReplayOutcome:
    """Replay the whole trace and return the outcome."""
    timeline = Timeline()
    controller = SimulatedController(timeline, scenario)
    nodes = SimulatedNodes(timeline, scenario, controller.stir)
    traces = {ZONE: trace}
    controller.lead(SimulatedMarket(timeline, traces, scenario, nodes, controller.stir), nodes)
    return played(traces, scenario, timeline, controller, nodes)


def played(
    traces: Mapping[str, Trace],
    scenario: Scenario,
    timeline: Timeline,
    controller: SimulatedController,
    nodes: SimulatedNodes,
) -> ReplayOutcome:
    """Let the time of these traces pass, and return the outcome of a job that could use them all.

    They have the same length.
    """
    length = next(iter(traces.values())).length
    timeline.run(until=length)
    nodes.finish()
    as_saved = replace(scenario, schedule=nodes.schedule)
    bound = allowed_anywhere(tuple(traces.values()), as_saved)
    return judge(NAME, nodes.stretches, bill(controller.bill.values(), length), bound, as_saved)


def bill(usage: Iterable[Usage], until: float) -> Bill:
    """Return what these instances have cost until then."""
    spot = on_demand = usd = 0.0
    for item in usage:
        hours = item.hours(until)
        spot += hours * item.spot
        on_demand += hours * (not item.spot)
        usd += hours * item.rate
    return Bill(spot, on_demand, usd)
