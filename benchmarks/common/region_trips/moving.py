"""Replays a job that moves between regions, under the real decisions, in virtual time.

In each region it is a cluster of its own: a market, nodes and a controller, which know nothing of
the others. A move ends the one as a user's `stop` would, with an agreed save, and starts the next
from the commit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from common.region_trips.travel import SCORES_EVERY, RegionMove, RegionsOutcome, Travel
from common.replayed import markets
from common.replayed.bills import both
from spotelastic_checkpoints.types import Commit

from spotelastic.cloud.model import ALIVE
from spotelastic.controller.decisions import regions
from spotelastic.controller.model.regions import (
    RegionHistory,
    RegionOffer,
    RegionPolicy,
)
from spotelastic.model.counting import HOUR
from spotelastic.model.job import ENDED, Ending
from spotelastic.replay.market import ZONE, SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.outcome import Bill, RunSpan, allowed_anywhere, judge, kept
from spotelastic.replay.play import NAME, bill
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.simulated_controller import SimulatedController
from spotelastic.replay.timeline import Timeline
from spotelastic.replay.trace import Trace

POLL = 1.0
"""Seconds between two looks at whether a cluster that ends has ended."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The cluster of the job in one region."""

    region: str
    since: float
    controller: SimulatedController
    market: SimulatedMarket
    nodes: SimulatedNodes

    @property
    def ended(self) -> bool:
        """Whether the job has ended here."""
        job = self.nodes.seen.job
        return job is not None and job.state in ENDED

    def gives(self) -> int:
        """Return the number of instances that are there to stay, booting ones included."""
        capacity = self.market.capacity
        leaving = {
            member.instance
            for group in capacity.groups().values()
            if group is not None
            for member in group.members
            if member.leaving
        }
        warned = self.nodes.seen.drains.keys() | leaving
        return sum(
            machine.state in ALIVE and machine.id not in warned for machine in capacity.instances()
        )


def play(traces: Mapping[str, Trace], scenario: Scenario, travel: Travel) -> RegionsOutcome:
    """Replay a job that may be in any of these regions. All traces have the same length."""
    job = _MovingJob(traces, scenario, travel)
    length = next(iter(traces.values())).length
    job.timeline.run(until=length)
    stretches, paid = job.finish()
    as_saved = replace(scenario, schedule=job.stay.nodes.schedule)
    bound = allowed_anywhere(tuple(traces.values()), scenario)
    outcome = judge(NAME, stretches, paid, bound, as_saved)
    return RegionsOutcome(
        outcome, length / HOUR, sum(kept(stretches)), tuple(job.moves), job.hours_in
    )


class _MovingJob:
    def __init__(self, traces: Mapping[str, Trace], scenario: Scenario, travel: Travel) -> None:
        self.timeline = Timeline()
        self.moves: list[RegionMove] = []
        self.hours_in = dict.fromkeys(traces, 0.0)
        self._traces, self._scenario, self._travel = traces, scenario, travel
        self._counts = {region: dict(markets.counts(trace)) for region, trace in traces.items()}
        self._promised = dict.fromkeys(traces, 0)
        self._stretches: list[RunSpan] = []
        self._paid = Bill()
        for region, counts in self._counts.items():
            for at, nodes in counts.items():
                self.timeline.at(at, partial(self._has, region, nodes))
        self._has_now = dict.fromkeys(traces, 0)
        self.timeline.run(until=0.0)
        self._ask_scores()
        home = _first(self._offers(None), travel.policy).region
        self._history = RegionHistory(home, since=0.0, looked_at=0.0)
        self.stay = self._settle(home, None)
        self._look()

    # -- what is seen -----------------------------------------------------------------------------

    def _has(self, region: str, nodes: int) -> None:
        self._has_now[region] = nodes

    def _ask_scores(self) -> None:
        self._promised = dict(self._has_now)
        self.timeline.after(SCORES_EVERY, self._ask_scores)

    def _offers(self, stay: Stay | None) -> tuple[RegionOffer, ...]:
        travel, scenario = self._travel, self._scenario
        seconds, usd = travel.pause(scenario), travel.price(scenario)
        offers = []
        for region in self._traces:
            at_home = stay is not None and region == stay.region
            promised = self._promised[region] if travel.scores else None
            nodes = stay.gives() if stay is not None and at_home else promised
            here = travel.usd(region, scenario)
            offers.append(RegionOffer(region, nodes, here, seconds, usd))
        return tuple(offers)

    # -- what is done -----------------------------------------------------------------------------

    def _look(self) -> None:
        now, policy = self.timeline.now, self._travel.policy
        if self.stay.ended:
            return  # A limit has ended it, wherever it is.
        offers = self._offers(self.stay)
        self._history = regions.look(self._history, offers, now, policy)
        decision = regions.decide(self._history, offers, now, policy)
        if decision.to:
            self._leave(decision.to, decision.reason)
        else:
            self.timeline.at(now + policy.look_every, self._look)

    def _leave(self, region: str, reason: str) -> None:
        """End the cluster here at an agreed step, then go to the other region."""
        now = self.timeline.now
        self.stay.nodes.ask_to_end(Ending("stopped", now, reason))
        self.stay.controller.stir()

        def wait() -> None:
            if not self.stay.ended:
                self.timeline.after(POLL, wait)
                return
            arrives = self.timeline.now + self._travel.makes_within(self._scenario)
            self.moves.append(RegionMove(now, arrives, self.stay.region, region, reason))
            self._count(self.timeline.now)
            self.timeline.at(arrives, lambda: self._come(region, now))

        wait()

    def _come(self, region: str, left_at: float) -> None:
        now = self.timeline.now
        self._history = regions.arrive(self._history, region, left_at, now, self._travel.policy)
        before = self.stay
        self._close(before)
        committed = before.nodes.committed
        # Its epoch is older than any of the new cluster.
        self.stay = self._settle(region, Commit(0, committed) if committed else None)
        self._look()

    def _settle(self, region: str, commit: Commit | None) -> Stay:
        machines = replace(
            self._scenario.machines, spot_usd=self._travel.usd(region, self._scenario)
        )
        capacity = self._scenario.capacity
        if capacity.max_cost is not None:
            capacity = replace(capacity, max_cost=max(0.0, capacity.max_cost - self._paid.usd))
        scenario = replace(self._scenario, machines=machines, capacity=capacity)
        now = self.timeline.now
        controller = SimulatedController(self.timeline, scenario)
        nodes = SimulatedNodes(self.timeline, scenario, controller.stir, commit)
        market = SimulatedMarket(
            self.timeline,
            {ZONE: markets.since(self._traces[region], now)},
            scenario,
            nodes,
            controller.stir,
        )
        controller.lead(market, nodes)
        return Stay(region, now, controller, market, nodes)

    # -- what it has come to ----------------------------------------------------------------------

    def _count(self, until: float) -> None:
        self.hours_in[self.stay.region] += (until - self.stay.since) / HOUR

    def _close(self, stay: Stay) -> None:
        stay.nodes.finish()
        self._stretches += stay.nodes.stretches
        stayed = bill(stay.controller.bill.values(), self.timeline.now)
        self._paid = both(self._paid, stayed)
        self._paid = both(self._paid, Bill(usd=self._travel.price(self._scenario)))

    def finish(self) -> tuple[list[RunSpan], Bill]:
        """End the replay. Return the times in which the job trained, and what it has cost."""
        stay = self.stay
        stay.nodes.finish()
        if not stay.ended:
            self._count(self.timeline.now)
        paid = both(self._paid, bill(stay.controller.bill.values(), self.timeline.now))
        return self._stretches + stay.nodes.stretches, paid


def _first(offers: tuple[RegionOffer, ...], policy: RegionPolicy) -> RegionOffer:
    """Return the region in which a job begins: of those worth most the cheapest."""
    return max(
        offers, key=lambda offer: (regions.worth(offer, policy), offer.nodes or 0, -offer.usd)
    )
