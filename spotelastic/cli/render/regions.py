"""Renders what a job makes of several regions in a replay: a table, and its moves."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from spotelastic.cli.render import tables
from spotelastic.model.counting import counted, dollars

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spotelastic.replay.regions.compare import Comparison
    from spotelastic.replay.regions.travel import RegionsOutcome, Travel
    from spotelastic.replay.scenario import Scenario
    from spotelastic.replay.trace import Trace

BOUND = "best region at each moment"
MOST_MOVES = 12
"""Moves of a job that are listed."""


def heading(traces: "Mapping[str, Trace]", scenario: "Scenario", travel: "Travel") -> str:
    """Return what is replayed, in a few lines."""
    length = next(iter(traces.values())).length
    usd = {travel.spot_usd.get(each, scenario.machines.spot_usd) for each in traces}
    price = dollars(min(usd))
    if len(usd) > 1:
        price = f"{price} to {dollars(max(usd))}"
    knows = "known within five minutes" if travel.scores else "not known"
    return (
        f"{', '.join(traces)}: {length / 3600:.1f} h\n"
        f"a job of {scenario.min_nodes} to {scenario.max_nodes} nodes: steps of "
        f"{scenario.step:g} s, {scenario.state / 1e9:g} GB; {price} an hour a node\n"
        f"a move: {travel.pause(scenario) / 60:.1f} min without a step, "
        f"{dollars(travel.price(scenario))} for the copy; what other regions have is {knows}\n"
    )


def table(compared: "Comparison") -> "RenderableType":
    """Return the table of outcomes, with the bound as its last row."""
    numbers = (
        "of the\nbound", "useful steps\nan hour", "useful steps\na dollar", "hours\ntraining",
        "node\nhours", "cost", "steps\nredone", "starts", "moves",
    )  # fmt: skip
    rows = tables.table_of("policy", *numbers, right=numbers)
    for each in compared.outcomes:
        its = each.outcome
        rows.add_row(
            its.policy,
            f"{its.goodput:.1%}",
            f"{each.steps_per_hour:.0f}",
            f"{each.steps_per_usd:.0f}",
            f"{its.hours:.2f}",
            f"{its.bill.hours:.1f}",
            dollars(its.bill.usd),
            str(its.steps_lost),
            str(its.starts),
            str(len(each.moves)),
        )
    bound = compared.bound
    node_hours = bound.bound.node_seconds / 3600
    steps = bound.steps_per_hour * bound.hours
    usd = node_hours * bound.spot_usd
    rows.add_row(
        BOUND,
        "100.0%",
        f"{bound.steps_per_hour:.0f}",
        f"{steps / usd:.0f}" if usd else "-",
        f"{bound.bound.seconds / 3600:.2f}",
        f"{node_hours:.1f}",
        dollars(usd),
        *("-", "-", "-"),
    )
    return rows


def moves(compared: "Comparison") -> Iterator[str]:
    """Yield the moves, one per line: when, from where to where, and why."""
    for each in compared.outcomes:
        if each.moves:
            times = ", ".join(f"{region} {hours:.1f} h" for region, hours in each.hours_in.items())
            yield f"{each.outcome.policy} was in {times}"
        for move in each.moves[:MOST_MOVES]:
            yield f"{move.at / 3600:8.2f} h  {move.left} {move.reason}"
        if len(each.moves) > MOST_MOVES:
            yield f"and {counted(len(each.moves) - MOST_MOVES, 'move')} more: see --json"


def values(compared: "Comparison") -> dict[str, object]:
    """Return everything for JSON."""
    bound = compared.bound
    return {
        "bound": {
            **msgspec.to_builtins(bound),
            "steps_per_hour": bound.steps_per_hour,
        },
        "outcomes": [_outcome(each) for each in compared.outcomes],
    }


def _outcome(each: "RegionsOutcome") -> dict[str, object]:
    return {
        **msgspec.to_builtins(each),
        "steps_per_hour": each.steps_per_hour,
        "steps_per_usd": each.steps_per_usd,
    }
