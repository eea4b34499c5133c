"""Runs the controller's real decisions in a replay, and acts on the simulated market."""

from dataclasses import replace

from spotelastic.cloud.memory.prices import FixedPrices
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
    Money,
    Observation,
    Remove,
    Replace,
    SetDesired,
    Tell,
)
from spotelastic.controller.model.remembered import Remembered
from spotelastic.replay.market import GROUPS, SimulatedMarket
from spotelastic.replay.nodes import SimulatedNodes
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.timeline import Soon, Timeline

TURN = 0.25
"""Seconds until the controller has observed a change."""
DECIDES_BY = ControllerPolicy()
FORGOTTEN = 3600.0
"""Seconds after which EC2 no longer lists a terminated instance."""


class SimulatedController:
    """The controller of a replayed job. Call `stir` when something has changed."""

    def __init__(
        self,
        timeline: Timeline,
        scenario: Scenario,
        policy: ControllerPolicy = DECIDES_BY,
    ) -> None:
        self.stir = Soon(timeline, TURN, self._turn)
        self.bill: dict[str, Usage] = {}
        self._timeline, self._scenario = timeline, scenario
        self._policy = replace(policy, capacity=scenario.capacity)
        self._leads: tuple[SimulatedMarket, SimulatedNodes] | None = None
        self._short_since: float | None = None
        self._remembered = Remembered()
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
        machines = market.capacity.instances()
        costs = self._scenario.machines
        prices = FixedPrices(costs.spot_usd, costs.on_demand_usd)
        self.bill = usage.account(self.bill, machines, prices, self._timeline.now)
        for machine in machines:
            ended = self.bill[machine.id].end
            if ended is not None and self._timeline.now - ended > FORGOTTEN:
                market.capacity.forget(machine.id)

    def _observe(self, market: SimulatedMarket, nodes: SimulatedNodes) -> Observation:
        now = self._timeline.now
        there = {name: live.node for name, live in nodes.seen.nodes.items()}
        for name in self._incarnations.keys() - there.keys():
            self._left[name] = DepartedNode(self._incarnations[name], now)
        self._incarnations = {name: node.incarnation for name, node in there.items()}
        machines = {machine.id: machine for machine in market.capacity.instances()}
        self._left = {name: left for name, left in self._left.items() if name in machines}
        groups = market.capacity.groups()
        return Observation(
            **self._remembered.recalled(),
            desired=self._scenario.max_nodes,
            least=self._scenario.min_nodes,
            since=0.0,
            job=nodes.seen.job,
            ending=nodes.seen.ending,
            group=groups[GROUPS.spot],
            on_demand=groups[GROUPS.on_demand],
            short_since=self._short(len(there)),
            money=self._money(now),
            committed=nodes.committed,
            machines=machines,
            nodes=there,
            left=self._left,
            drains=nodes.seen.drains,
            messages=tuple(market.messages.values()),
            handled=frozenset(self._handled),
        )

    def _money(self, now: float) -> Money:
        """Return what the job has cost; only its limit asks for that, and a bill is long."""
        limited = self._scenario.capacity.max_cost is not None
        spent = usage.money(self.bill.values(), now) if limited else Money()
        costs = self._scenario.machines
        return replace(spent, spot=costs.spot_usd, on_demand=costs.on_demand_usd)

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
                market.capacity.replace(instance)
            case CompleteDrain(instance, group):
                market.capacity.complete_drain(group, instance)
            case EndMachine(instance):
                market.capacity.end((instance,))
            case Remove(instance):
                market.capacity.remove(instance)
            case Forget(node):
                nodes.leave(node.id)
            case SetDesired(group, size):
                market.capacity.set_desired(group, size)
            case AskToEnd(ending):
                nodes.ask_to_end(ending)
            case EndJobAtOnce(job):
                nodes.end(job)
            case Tell(event):
                self._remembered.add(event)
            case Discard(message):
                market.messages.pop(message.receipt)
                self._handled.add(message.event.id)
