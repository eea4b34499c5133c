"""Replays a job whose nodes are packed into one zone of several, and which may leave it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotelastic.cloud.events import FailureCause, GroupActivity
from spotelastic.cloud.model import Instance, ZoneOffer
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    Observation,
    SetSubnets,
    Tell,
)
from spotelastic.model.progress import Event
from spotelastic.replay.market import GROUPS, SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.outcome import ReplayOutcome
from spotelastic.replay.play import played
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.simulated_controller import DECIDES_BY, SimulatedController
from spotelastic.replay.timeline import Timeline
from spotelastic.replay.trace import Trace

TRIED_AGAIN = 30.0
"""Seconds until a group tries again to launch what a zone has not had."""
BEST_SCORE = 10


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
    timeline = Timeline()
    controller = ZonesController(timeline, scenario, policy)
    nodes = SimulatedNodes(timeline, scenario, controller.stir)
    controller.lead(ZonesMarket(timeline, traces, scenario, nodes, controller.stir), nodes)
    outcome = played(traces, scenario, timeline, controller, nodes)
    return ZonesOutcome(outcome, tuple(controller.events))


class ZonesController(SimulatedController):
    """Chooses among the zones of a `ZonesMarket`, and keeps what it puts on record."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.events: list[Event] = []

    def _observe(self, market: SimulatedMarket, nodes: SimulatedNodes) -> Observation:
        assert isinstance(market, ZonesMarket)
        return replace(super()._observe(market, nodes), zones=market.zones())

    def _perform(self, action: Action, market: SimulatedMarket, nodes: SimulatedNodes) -> None:
        assert isinstance(market, ZonesMarket)
        match action:
            case SetSubnets(group, subnets):
                market.set_subnets(group, subnets)
            case Tell(event):
                self.events.append(event)
        super()._perform(action, market, nodes)


class ZonesMarket(SimulatedMarket):
    """A market of several zones, which tells of launches that fail in the one that was chosen."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tries_at = 0.0

    def zones(self) -> tuple[ZoneOffer, ...]:
        """Return the zones to choose from, each with its price and score."""
        usd, wanted = self._scenario.machines.spot_usd, self._scenario.max_nodes
        return tuple(
            ZoneOffer(
                zone.name,
                zone.subnets,
                usd=usd,
                score=max(1, round(BEST_SCORE * min(1.0, self._free(zone.name) / wanted))),
            )
            for zone in self.capacity.offered
        )

    def set_subnets(self, group: str, subnets: Sequence[str]) -> None:
        """Let a group launch in the zone of these subnets from now on."""
        if group == GROUPS.spot:
            self._launches_in = next(
                zone.name for zone in self.capacity.offered if zone.subnets[0] in subnets
            )
            self._tries_at = 0.0
        self.capacity.set_subnets(group, subnets)

    def _launch_missing(self) -> None:
        super()._launch_missing()
        now = self._timeline.now
        if now >= self._tries_at and self.capacity.groups()[GROUPS.spot].asked:
            self._tries_at = now + TRIED_AGAIN
            self._tell_of_launch("", "UnfulfillableCapacity")
            self._timeline.at(self._tries_at, self._fill)

    def _launched(self, instance: Instance) -> None:
        super()._launched(instance)
        if instance.spot:
            self._tell_of_launch(instance.id)

    def _tell_of_launch(self, instance: str, failed: str = "") -> None:
        where = self._launches_in
        cause: FailureCause = "capacity" if failed else "other"
        id = f"launch-{instance}-{self._timeline.now}"
        self._tell(
            GroupActivity(
                id, self._timeline.now, instance, GROUPS.spot, "launch", not failed, failed, where,
                cause,
            )
        )  # fmt: skip
