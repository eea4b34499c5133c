"""Benchmarks a job that may move between regions, in virtual time, as `spotelastic replay` plays it
with several traces.

The markets are drawn: in each region all nodes are there for hours, or none, as in public traces of
16 nodes. `--traces FOLDER` takes recorded ones instead, one file for each region, such as those of
https://github.com/skypilot-org/spot-traces, which have no licence and are therefore not here.

All policies pay the same prices (`--price`). Each assumes something of its own, which the first
lines say (`ASSUMED`): spotelastic knows roughly what other regions have, unless `--no-scores`.

Bars: at least 90 % of what the best region at each moment would give a job that moves for nothing,
where it moves more rarely than every two hours; and at least 98 % of what that region gives which
turns out to be the best one.
"""

import argparse
import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from common.measuring import conduct, where
from common.region_trips.compare import compare, in_common
from common.region_trips.travel import Travel

from spotelastic.controller.model.regions import RegionPolicy
from spotelastic.model.counting import HOUR
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.trace import Span, Trace, read

REGIONS = ("east-1", "east-2", "west-2")
DAYS = 10
NODES = 16
BOUND, SINGLE = 90.0, 98.0
ASSUMED = (
    "spotelastic: a move takes minutes and costs its copy; {knows}",
    "best single region: it is known afterwards which one that was; it never moves",
    "fail-over: full restarts with the number of nodes and the schedule that turn out best; moves "
    "are free and find out for nothing where nodes are",
)
KNOWS = "it knows what other regions had within five minutes, as placement scores tell roughly"
DOES_NOT = "it knows nothing of other regions, and finds out by going there"
MOST_MOVES = 12
"""Moves a day up to which the bar of the bound holds: one in two hours."""


def drawn(name: str, hours: float) -> Trace:
    """A market that has all of its nodes half of the time, for this number of hours on average."""
    rng = random.Random(f"{name} {hours}")
    length = DAYS * 24 * HOUR
    spans: list[Span] = []
    at = rng.expovariate(1 / hours) * HOUR * rng.randint(0, 1)
    for stay in itertools.count():
        end = at + max(0.1, rng.expovariate(1 / hours)) * HOUR
        if end >= length:
            break
        # They come and go within a quarter of an hour, one after another.
        spans += [
            Span(f"{stay}-{node}", at + rng.random() * 300, end + rng.random() * 900)
            for node in range(NODES)
        ]
        at = end + max(0.5, rng.expovariate(1 / hours)) * HOUR
    return Trace(name, tuple(sorted(spans, key=lambda span: span.start)), length)


def cases(folder: Path | None) -> Iterator[tuple[str, Mapping[str, Trace]]]:
    if folder is not None:
        yield folder.name, in_common([read(path) for path in sorted(folder.glob("*.json"))])
        return
    for hours in (12.0, 6.0, 3.0):
        traces = [drawn(region, hours) for region in REGIONS]
        yield f"drawn, {hours:g} h", in_common(traces)


def lines(
    name: str, traces: Mapping[str, Trace], least: int, most: int, options: argparse.Namespace
) -> Iterator[str]:
    machines = NodeTimings(spot_usd=0.3, on_demand_usd=1.0)
    scenario = Scenario(least, most, machines=machines)
    usd = {region: float(price) for region, _, price in (p.partition("=") for p in options.price)}
    travel = Travel(RegionPolicy(least, most), scores=options.scores, spot_usd=usd)
    compared = compare(traces, scenario, travel, ("spotelastic", "single", "fail-over"), None)
    ours, single, _ = compared.outcomes
    for each in compared.outcomes:
        its = each.outcome
        yield (
            f"{name}, {least} to {most} nodes, {its.policy:32} {its.goodput * 100:5.1f} % of the "
            f"bound, {each.steps_per_hour:5.0f} useful steps an hour, {each.steps_per_usd:5.0f} a "
            f"dollar, {len(each.moves)} moves"
        )
    if not options.scores:
        return
    a_day = len(ours.moves) / ours.hours * 24
    bars = [("of best single", 100 * ours.outcome.goodput / single.outcome.goodput, SINGLE)]
    if a_day < MOST_MOVES:
        bars.append(("of the bound", 100 * ours.outcome.goodput, BOUND))
    for what, value, bar in bars:
        verdict = "met" if value >= bar else "MISSED"
        yield f"{name}, {least} to {most} nodes: {what} {value:.1f} % >= {bar:g}: {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description="A job that moves between regions.")
    parser.add_argument("--traces", type=Path, help="folder with a JSON trace for each region")
    parser.add_argument(
        "--price",
        metavar="REGION=USD",
        action="append",
        default=[],
        help="what an hour of a spot node costs there, for every policy; 0.3 unless said",
    )
    parser.add_argument(
        "--no-scores",
        dest="scores",
        action="store_false",
        help="nothing is known of other regions; without bars",
    )
    options = parser.parse_args()
    print(where(), flush=True)
    for line in ASSUMED:
        print(line.format(knows=KNOWS if options.scores else DOES_NOT), flush=True)
    for name, traces in cases(options.traces):
        most = max(trace.most_nodes for trace in traces.values())
        for least, each in sorted({(min(4, most), most), (min(4, most), min(4, most))}):
            for line in lines(name, traces, least, each, options):
                print(line, flush=True)


if __name__ == "__main__":
    conduct(main)
