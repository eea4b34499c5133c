"""Runs the controller's real decisions in a replay, and acts on the simulated market."""

from dataclasses import dataclass, replace

from spotelastic.controller.accounting import usage
from spotelastic.controller.accounting.usage import Usage
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.model.observation import (
    Action,
    AskToEnd,
    CompleteDrain,
    ControllerPolicy,
    DepartedNode,
    Discard,
    DrainNode,
    EndJobAtOnce,
    EndMachine,
    Forget,
    Observation,
    Remove,
    Replace,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.progress import Event
from spotelastic.replay.market import ON_DEMAND, SPOT, SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.timeline import Soon, Timeline

TURN = 0.25
"""Seconds until the controller has observed a change."""
FORGOTTEN = 3600.0
"""Seconds after which EC2 no longer lists a terminated instance."""


@dataclass(frozen=True, slots=True)
class FixedPrices:
    """Prices that do not change during a replay, in US dollars an hour."""

    machines: NodeTimings

    def spot(self, type: str, zone: str) -> float:
        """Return the spot price of an instance."""
        return self.machines.spot_usd

    def on_demand(self, type: str) -> float:
        """Return the on-demand price of an instance."""
        return self.machines.on_demand_usd

    def besides(self, role: str, *, public: bool) -> float:
        """Return 0: a replay counts only what instances cost."""
        return 0.0  # a replay counts only what instances cost


class SimulatedController:
    """The controller of a replayed job. Call `stir` when something has changed."""

    def __init__(self, timeline: Timeline, scenario: Scenario) -> None:
        self.stir = Soon(timeline, TURN, self._turn)
        self.events: list[Event] = []
        self.bill: dict[str, Usage] = {}
        self._timeline, self._scenario = timeline, scenario
        self._policy = ControllerPolicy(capacity=scenario.capacity)
        self._leads: tuple[SimulatedMarket, SimulatedNodes] | None = None
        self._short_since: float | None = None
        self._given_back_at = 0
        self._told: set[tuple[str, str, str]] = set()
        self._left: dict[str, DepartedNode] = {}
        self._incarnations: dict[str, str] = {}
        self._handled: set[str] = set()

    def lead(self, market: SimulatedMarket, nodes: SimulatedNodes) -> None:
        """Begin to control this market and these nodes."""
        self._leads = market, nodes
        self.stir()

    def _turn(self) -> None:
        if self._leads is None:
            return
        market, nodes = self._leads
        now = self._timeline.now
        self._account(market)
        decision = decide(self._observe(market, nodes), now, self._policy)
        for action in decision.actions:
            self._perform(action, market, nodes)
        if any(not isinstance(action, Tell | Discard) for action in decision.actions):
            self.stir()  # A controller looks again soon after it has acted.
        if decision.wake_at is not None:
            self._timeline.at(decision.wake_at, self.stir)

    def _account(self, market: SimulatedMarket) -> None:
        machines = [rented.machine for rented in market.rented.values()]
        self.bill = usage.account(
            self.bill, machines, FixedPrices(self._scenario.machines), self._timeline.now
        )
        for name, rented in list(market.rented.items()):
            ended = self.bill[name].end
            if ended is not None and self._timeline.now - ended > FORGOTTEN:
                del market.rented[rented.machine.id]

    def _observe(self, market: SimulatedMarket, nodes: SimulatedNodes) -> Observation:
        now = self._timeline.now
        there = {name: live.node for name, live in nodes.seen.nodes.items()}
        for name in self._incarnations.keys() - there.keys():
            self._left[name] = DepartedNode(self._incarnations[name], now)
        self._incarnations = {name: node.incarnation for name, node in there.items()}
        self._left = {name: left for name, left in self._left.items() if name in market.rented}
        return Observation(
            desired=self._scenario.max_nodes,
            least=self._scenario.min_nodes,
            since=0.0,
            job=nodes.seen.job,
            ending=nodes.seen.ending,
            group=market.group(SPOT),
            on_demand=market.group(ON_DEMAND),
            short_since=self._short(len(there)),
            money=replace(
                usage.money(self.bill.values(), now),
                spot=self._scenario.machines.spot_usd,
                on_demand=self._scenario.machines.on_demand_usd,
            ),
            committed=nodes.committed,
            given_back_at=self._given_back_at,
            machines={name: rented.machine for name, rented in market.rented.items()},
            nodes=there,
            left=self._left,
            drains=nodes.seen.drains,
            told=frozenset(self._told),
            messages=tuple(market.messages.values()),
            handled=frozenset(self._handled),
        )

    def _short(self, there: int) -> float | None:
        if there >= self._scenario.min_nodes:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = self._timeline.now
        return self._short_since

    def _perform(self, action: Action, market: SimulatedMarket, nodes: SimulatedNodes) -> None:
        match action:
            case DrainNode(drain):
                nodes.drain(drain)
            case Replace(instance):
                market.terminate(instance)
            case CompleteDrain(instance):
                market.complete(instance)
            case EndMachine(instance):
                market.end(instance)
            case Remove(instance):
                market.terminate(instance, smaller=True)
            case Forget(node):
                nodes.leave(node.id)
            case SetDesired(group, size):
                market.set_desired(group, size)
            case AskToEnd(ending):
                nodes.ask_to_end(ending)
            case EndJobAtOnce(job):
                nodes.end(job)
            case Tell(event):
                self.events.append(event)
                self._given_back_at = max(self._given_back_at, event.data.get("committed", 0))
                self._told.add(account(event))
            case Discard(message):
                market.messages.pop(message.receipt)
                self._handled.add(message.event.id)
