"""Replays a spot trace under spotelastic's own decisions, in virtual time."""

from collections.abc import Iterable
from dataclasses import replace

from spotelastic.controller.accounting.usage import Usage
from spotelastic.replay.control import SimulatedController
from spotelastic.replay.market import SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.outcome import Bill, ReplayOutcome, allowed, judge
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.timeline import Timeline
from spotelastic.replay.trace import Trace

NAME = "spotelastic"
"""Name of this policy."""


def play(trace: Trace, scenario: Scenario) -> ReplayOutcome:
    """Replay the whole trace and return the outcome."""
    timeline = Timeline()
    controller = SimulatedController(timeline, scenario)
    nodes = SimulatedNodes(timeline, scenario, controller.stir)
    market = SimulatedMarket(timeline, trace, scenario, nodes, controller.stir)
    controller.lead(market, nodes)
    timeline.run(until=trace.length)
    nodes.finish()
    paid = bill(controller.bill.values(), trace.length)
    as_saved = replace(scenario, schedule=nodes.schedule)
    return judge(NAME, nodes.stretches, paid, allowed(trace, as_saved), as_saved)


def bill(usage: Iterable[Usage], until: float) -> Bill:
    """Return what these instances have cost until then."""
    spot = on_demand = usd = 0.0
    for item in usage:
        hours = item.hours(until)
        spot += hours * item.spot
        on_demand += hours * (not item.spot)
        usd += hours * item.rate
    return Bill(spot, on_demand, usd)
