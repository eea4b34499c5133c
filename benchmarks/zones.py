"""Benchmarks how a job leaves zones that take nodes soon after their launch, in virtual time.

Each market is played twice under the real decisions, with short lives judged and without. Drawn:
one zone that takes each node a few minutes after its launch, beside one where nodes live for hours;
beside a worse one; and alone with one that has no capacity. `--traces FOLDER` adds recorded ones,
one file for each zone, such as those of https://github.com/skypilot-org/spot-traces, which have no
licence and are therefore not here.

Bars: at least 20 % more useful steps beside a good zone, and nowhere more than 0.5 % fewer.
"""

import argparse
import math
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from common.measuring import conduct, where
from common.region_trips.compare import in_common
from common.replayed.zones import play_in_zones

from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.replay.outcome import HOUR
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.trace import Span, Trace, read

LENGTH = 8 * HOUR
NODES = 8
SPARE = 4
NOTICE = 120.0
LEAST = 2
GAIN, LOSS = 20.0, 0.5
JUDGED = ControllerPolicy()
NOT_JUDGED = ControllerPolicy(short_lives=sys.maxsize)


def brief(name: str, minutes: float, *, until: float = LENGTH) -> Trace:
    """A zone that always has nodes, and warns each of them after so many minutes."""
    rng, spans = random.Random(name), []
    for node in range(NODES):
        at = 0.0
        while at < until:
            warned = at + minutes * 60 * rng.uniform(0.9, 1.1)
            spans.append(Span(f"{node}-{at:.0f}", at, warned + NOTICE))
            at = warned
    return Trace(name, tuple(sorted(spans, key=lambda span: span.start)), LENGTH)


def steady(name: str, *, since: float = 0.0, hours: float = 6.0) -> Trace:
    """A zone in which nodes live for hours, with some to spare."""
    rng, spans = random.Random(name), []
    for node in range(NODES + SPARE):
        at = since
        while at < LENGTH:
            end = at + rng.expovariate(1 / hours) * HOUR
            spans.append(Span(f"{node}-{at:.0f}", at, end if end < LENGTH else math.inf))
            at = end + 120.0
    return Trace(name, tuple(sorted(spans, key=lambda span: span.start)), LENGTH)


def empty(name: str) -> Trace:
    """A zone that has a node once, for a minute."""
    return Trace(name, (Span("once", 0.0, 60.0),), LENGTH)


def markets(folders: list[Path]) -> Iterator[tuple[str, Mapping[str, Trace], float]]:
    """Yield a name, the zones, and how many percent more useful steps are expected of it."""
    good = steady("b")
    yield "4 min, beside hours", {"a": brief("a", 4), "b": good}, GAIN
    yield "4 min, beside 8 min", {"a": brief("a", 4), "b": brief("b", 8)}, -LOSS
    yield "4 min, beside none", {"a": brief("a", 4), "b": empty("b")}, -LOSS
    both = {"a": brief("a", 4), "b": brief("b", 4)}
    yield "4 min, beside the same", both, -LOSS
    yield "4 min for 2 h, then hours", {"a": mended("a"), "b": empty("b")}, -LOSS
    yield "hours, beside hours", {"a": steady("a"), "b": good}, -LOSS
    for folder in folders:
        yield folder.name, in_common([read(path) for path in sorted(folder.glob("*.json"))]), -LOSS


def mended(name: str) -> Trace:
    """A zone that takes nodes after four minutes at first, and later has them for hours."""
    spans = (*brief(name, 4, until=2 * HOUR).spans, *steady(name, since=2 * HOUR).spans)
    return Trace(name, tuple(sorted(spans, key=lambda span: span.start)), LENGTH)


def line(name: str, zones: Mapping[str, Trace], bar: float) -> str:
    most = min(NODES, max(trace.most_nodes for trace in zones.values()))
    machines = NodeTimings(spot_usd=0.3, on_demand_usd=1.0)
    scenario = Scenario(min(LEAST, most), most, automatic=True, machines=machines)
    judged, not_judged = (play_in_zones(zones, scenario, each) for each in (JUDGED, NOT_JUDGED))
    ours, before = (each.outcome.useful_node_hours for each in (judged, not_judged))
    more = 100 * (ours / before - 1) if before else 0.0
    moves = [sum(e.kind == "zone" for e in each.events) for each in (judged, not_judged)]
    paid = [each.outcome.paid * 100 for each in (judged, not_judged)]
    return (
        f"{name}: {ours:.1f} useful node hours, {before:.1f} without: {more:+.1f} %; "
        f"{paid[0]:.0f} and {paid[1]:.0f} % of what was paid; {moves[0]} and {moves[1]} "
        f"events of zones; >= {bar:+g} %: {'met' if more >= bar else 'MISSED'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Zones that take nodes soon after their launch.")
    parser.add_argument(
        "--traces", type=Path, action="append", default=[], help="folder with a trace for each zone"
    )
    options = parser.parse_args()
    print(where(), flush=True)
    for market in markets(options.traces):
        print(line(*market), flush=True)


if __name__ == "__main__":
    conduct(main)
