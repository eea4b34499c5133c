"""Replays a spot trace under spotelastic's own decisions, in virtual time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from spotelastic.controller.accounting.usage import Usage
from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.model.progress import Event
from spotelastic.replay.market import ZONE, SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.outcome import Bill, ReplayOutcome, allowed_anywhere, judge
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.simulated_controller import DECIDES_BY, SimulatedController
from spotelastic.replay.timeline import Timeline
from spotelastic.replay.trace import Trace

NAME = "spotelastic"
"""Name of this policy."""


def play(trace: Trace, scenario: Scenario) -> ReplayOutcome:
    """Replay the whole trace and return the outcome."""
    return play_in_zones({ZONE: trace}, scenario).outcome


@dataclass(frozen=True, slots=True)
class ZonesOutcome:
    """How a job fared that packs its nodes into one of several zones."""

    outcome: ReplayOutcome
    events: tuple[Event, ...]
    """What its controller has put on record."""


def play_in_zones(
    traces: Mapping[str, Trace], scenario: Scenario, policy: ControllerPolicy = DECIDES_BY
) -> ZonesOutcome:
    """Replay a job whose nodes are packed into one of these zones, given by name.

    All traces have the same length. `policy` is what the controller decides by, but for what the
    scenario says of its capacity.
    """
    length = next(iter(traces.values())).length
    timeline = Timeline()
    controller = SimulatedController(timeline, scenario, policy)
    nodes = SimulatedNodes(timeline, scenario, controller.stir)
    market = SimulatedMarket(timeline, traces, scenario, nodes, controller.stir)
    controller.lead(market, nodes)
    timeline.run(until=length)
    nodes.finish()
    paid = bill(controller.bill.values(), length)
    as_saved = replace(scenario, schedule=nodes.schedule)
    bound = allowed_anywhere(tuple(traces.values()), as_saved)
    outcome = judge(NAME, nodes.stretches, paid, bound, as_saved)
    return ZonesOutcome(outcome, tuple(controller.events))


def bill(usage: Iterable[Usage], until: float) -> Bill:
    """Return what these instances have cost until then."""
    spot = on_demand = usd = 0.0
    for item in usage:
        hours = item.hours(until)
        spot += hours * item.spot
        on_demand += hours * (not item.spot)
        usd += hours * item.rate
    return Bill(spot, on_demand, usd)
