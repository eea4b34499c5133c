"""Benchmarks what a job with virtual ranks gains from two types of nodes, in virtual time.

A public spot trace for each type is played under the real decisions: with either type alone, and
with both, of which the one that is cheaper for what it computes is launched first, as clusters do
it, or the faster one. The batch is the same whatever the nodes are. It is dealt out by how fast
they are, as `ElasticSampler(virtual_ranks=...)` does it, so that a step takes as long as the
slowest share.

The types' speeds are the peak rates of their GPUs, and a spot node costs 30 % of the list price.
Bar: with the cheaper one first, more steps count than with that alone, and each costs less than on
the other one alone. No node leaves for a faster one: so the faster one alone makes more steps
wherever there is enough of it, which the last line shows.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.measuring import conduct, where

from spotelastic.cloud.model import ALIVE, Instance
from spotelastic.model.round import Round
from spotelastic.replay.market import SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.outcome import HOUR, kept
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.simulated_controller import SimulatedController
from spotelastic.replay.timeline import Timeline
from spotelastic.replay.trace import Trace, read
from spotelastic.training.data.sum_tree import cuts, takes

TRACES = Path(__file__).parent / "traces"
VIRTUAL = 64
"""Virtual ranks of the batch."""
STEP = 1.0
"""Seconds of a step on as many of the fastest nodes as the job may have."""


@dataclass(frozen=True)
class NodeKind:
    """A type of node, and where it was to be had."""

    name: str
    trace: Trace
    speed: float
    """Tera-operations a second of its GPU in 16 bits."""
    usd: float
    """US dollars an hour of a spot node."""


@dataclass(frozen=True)
class Played:
    """What a job came to with some types."""

    steps: int
    nodes: float
    """On average, while it trained."""
    usd: float

    @property
    def price(self) -> float:
        """US dollars of a step."""
        return self.usd / self.steps


class MixedMarket(SimulatedMarket):
    """Launches the first of several types of which a node is free. Each is a zone of its own."""

    def __init__(self, *given: Any) -> None:
        self.kinds: dict[str, str] = {}
        """The type of each instance."""
        super().__init__(*given)

    def _room(self, group: str) -> float:
        return sum(not each for each in self._spans.values())

    def _launched(self, instance: Instance) -> None:
        names = [zone.name for zone in self.capacity.offered]
        self._launches_in = next(name for name in names if self._free(name))
        self.kinds[instance.id] = self._launches_in
        super()._launched(instance)

    def _booted(self, name: str) -> None:
        known = self.capacity.launched.get(name)
        if known is not None and known.instance.state in ALIVE:
            self._nodes.join(name, self.kinds[name])


class MixedNodes(SimulatedNodes):
    """Steps take as long as the slowest share of the batch."""

    def __init__(
        self,
        timeline: Timeline,
        scenario: Scenario,
        changed: Callable[[], None],
        times: Mapping[str, float],
    ) -> None:
        """`times`: seconds that a node of each type takes for a virtual rank."""
        super().__init__(timeline, scenario, changed)
        self._times = times

    def _start(self, round_: Round) -> None:
        own = [self._times[self.seen.nodes[each.node].node.zone] for each in round_.members]
        step = takes(cuts(VIRTUAL, len(own), tuple(own)), own)
        self._scenario = replace(self._scenario, step=step)
        super()._start(round_)


def play(kinds: list[NodeKind], most: int, fastest: float) -> Played:
    """Play a job that may have nodes of these types, which are in the order of preference."""
    timeline, length = Timeline(), min(kind.trace.length for kind in kinds)
    scenario = Scenario(1, most, automatic=True, step=STEP, machines=NodeTimings(spot_usd=1.0))
    controller = SimulatedController(timeline, scenario)
    times = {kind.name: STEP * most / VIRTUAL * fastest / kind.speed for kind in kinds}
    nodes = MixedNodes(timeline, scenario, controller.stir, times)
    traces = {kind.name: kind.trace for kind in kinds}
    market = MixedMarket(timeline, traces, scenario, nodes, controller.stir)
    controller.lead(market, nodes)
    timeline.run(until=length)
    nodes.finish()
    prices = {kind.name: kind.usd for kind in kinds}
    usd = sum(
        usage.hours(length) * prices[market.kinds[name]] for name, usage in controller.bill.items()
    )
    spans = nodes.stretches
    seconds = sum(each.end - each.start for each in spans)
    held = sum((each.end - each.start) * each.nodes for each in spans)
    return Played(sum(kept(spans)), held / seconds if seconds else 0.0, usd)


def main() -> None:
    parser = argparse.ArgumentParser(description="Two types of nodes beside either of them.")
    parser.add_argument("--max", type=int, default=16, help="the most nodes of the job")
    most = parser.parse_args().max
    print(where(), flush=True)
    kinds = [
        NodeKind("g4dn.xlarge (T4)", read(TRACES / "bamboo-g4dn.csv"), 65.0, 0.3 * 0.526),
        NodeKind("p3.2xlarge (V100)", read(TRACES / "bamboo-p3.csv"), 125.0, 0.3 * 3.06),
    ]
    hours = min(kind.trace.length for kind in kinds) / HOUR
    print(f"{hours:.1f} h, at most {most} nodes, {VIRTUAL} virtual ranks", flush=True)
    cheap, fast = kinds
    assert cheap.usd / cheap.speed < fast.usd / fast.speed and cheap.speed < fast.speed
    ways = {
        cheap.name: [cheap],
        fast.name: [fast],
        "both, the cheaper first": [cheap, fast],
        "both, the faster first": [fast, cheap],
    }
    found = {name: play(way, most, fast.speed) for name, way in ways.items()}
    for name, its in found.items():
        print(
            f"{name}: {its.steps} steps that count on {its.nodes:.1f} nodes, ${its.usd:.2f}, "
            f"${1000 * its.usd / its.steps:.2f} for 1000 steps",
            flush=True,
        )
    cheap_alone, fast_alone, cheaper, faster = found.values()
    more, less = percent(cheaper.steps, cheap_alone.steps), percent(cheaper.price, fast_alone.price)
    gain = percent(faster.steps, fast_alone.steps)
    print(
        f"the cheaper first: {more:+.0f} % steps beside it alone, {less:+.0f} % dollars a step "
        f"beside the other: {'met' if more > 0 > less else 'MISSED'}"
    )
    print(f"the faster first: {gain:+.1f} % steps beside it alone")


def percent(value: float, beside: float) -> float:
    return 100 * (value / beside - 1)


if __name__ == "__main__":
    conduct(main)
