"""Benchmarks the controller: its speed, its calls to AWS, and its decisions on spot traces.

* decide: one decision about 1,000 nodes, with ten notices among the messages
* all know: a notice reaches one of 64 simulated agents (`light/agent.py`, real etcd with three
  members) as if its poll of the metadata service had just seen it; measured until the last other
  agent sees the resulting proposal
* replaced: a node of 100 gets its notice on the local cloud; measured until the controller, which
  learns of it only through the queue, has requested a replacement
* succeeded: the leading controller is killed while it handles a notice; measured until the other
  one leads and has published its observation; instances launched twice would be counted
* calls: what an idle cluster of 100 nodes asks of AWS in a minute, by two controllers and three
  etcd members; counted, plus each node's hourly look at its certificate
* traces: public spot traces played in virtual time, as `spotelastic replay` does
"""

import argparse
import contextlib
import functools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.etcd import etcd
from common.measuring import PATIENCE, Stuck, conduct, rest, until, where
from common.replayed.policies import PLAYED, compare
from light.account import Account, Controllers, account
from light.agent import Due, LightAgent, light_node
from light.crew import Crew
from light.store import LightStore

from spotelastic.agent.state.events import LocalEvent, Noticed
from spotelastic.agent.watches import StoreChanged
from spotelastic.aws.base.names import MEMBERS
from spotelastic.bootstrap.context import REFRESH
from spotelastic.clock import unbroken
from spotelastic.cloud.events import SpotWarning
from spotelastic.cloud.model import GroupMember, Instance, WorkerGroup
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.loop.controller_loop import LEASE
from spotelastic.controller.model.config import LoopPace
from spotelastic.controller.model.observation import (
    ControllerPolicy,
    DepartedNode,
    Message,
    Observation,
    Tell,
)
from spotelastic.local.fault_client import FaultClient
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.trace import read
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.keys import Keys

TRACES = Path(__file__).parent / "traces"
DECIDED, TRIALS = 1000, 20
AGENTS, NOTICES = 64, 5
HEARD_WITHIN = 0.1
"""Seconds."""
NODES = 100


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: float
    unit: str
    bar: float
    least: bool = False
    """Whether the bar is the least value that must be reached, not the most that is allowed."""

    def __str__(self) -> str:
        met = self.value >= self.bar if self.least else self.value <= self.bar
        sign = ">=" if self.least else "<="
        verdict = "met" if met else "MISSED"
        return f"{self.what:58} {self.value:>8.1f} {self.unit:5} {sign} {self.bar:g}: {verdict}"


# -- one decision --------------------------------------------------------------------------------


def deciding() -> Iterator[Row]:
    names = [f"i-{index:017x}" for index in range(DECIDED)]
    warned = names[:10]
    lost = {
        f"i-{index:017x}": DepartedNode(f"{index}", 500.0) for index in range(DECIDED, 3 * DECIDED)
    }
    seen = Observation(
        desired=DECIDED,
        since=0.0,
        job=Job("running", 0.0),
        group=WorkerGroup(
            "workers", DECIDED, tuple(GroupMember(name, "InService") for name in names)
        ),
        on_demand=WorkerGroup("on-demand", 0, ()),
        machines={
            name: Instance(name, "worker", "running", "p5.48xlarge", "a", "", True, 0.0)
            for name in names
        },
        nodes={name: Node(name, f"{name}-1", "", "a", Fingerprint()) for name in names},
        left=lost,
        told=frozenset(("loss", name, f"::{left.incarnation}") for name, left in lost.items()),
        messages=tuple(
            Message(f"r{name}", SpotWarning(f"e{name}", 999.0, name), 999.5) for name in warned
        ),
    )
    times = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        decision = decide(seen, 1000.0, ControllerPolicy())
        times.append(time.perf_counter() - started)
    assert sum(type(action).__name__ == "Replace" for action in decision.actions) == len(warned)
    assert not any(
        isinstance(action, Tell) and action.event.kind == "loss" for action in decision.actions
    )
    yield Row(
        f"decide for {DECIDED:,} nodes, {len(lost):,} gone",
        statistics.median(times) * 1e3,
        "ms",
        50,
    )


# -- a notice, told to all -----------------------------------------------------------------------


class Told:
    """Records when each agent saw the first proposal of a round, and how many hold each round."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.proposals: dict[str, dict[str, float]] = {}
        self.held: Counter[int] = Counter()

    def propose(self, node: str, round_: str) -> None:
        with self.changed:
            self.proposals.setdefault(round_, {}).setdefault(node, time.monotonic())
            self.changed.notify()

    def hold(self, number: int) -> None:
        with self.changed:
            self.held[number] += 1
            self.changed.notify()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, PATIENCE):
                raise Stuck(f"not within {PATIENCE:g} s: {what}")


class Watching(LightAgent):
    """An agent that reports when it knows of a proposal, which a notice leads to."""

    told: Told
    heard: str = ""

    def _take(self, event: LocalEvent | StoreChanged | Due) -> None:
        super()._take(event)
        if self._core.seen.proposal is not None:
            self.told.propose(self._node.id, self._core.seen.proposal.round)

    def _act(self) -> None:
        """Delay the agent's own reaction until all have heard.

        On instances of their own, what others do would take nothing from this agent's cores. Here
        all share one machine.
        """
        proposal = self._core.seen.proposal
        round_ = "" if proposal is None else proposal.round
        new, self.heard = round_ not in ("", self.heard), round_
        if new and self._core.local.membership.leadership is None:
            self._crew.later(HEARD_WITHIN, super()._act)
        else:
            super()._act()


def telling() -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        members = stack.enter_context(etcd(3))
        stores = [LightStore(member.endpoint, timeout=5.0) for member in members]
        for store in stores:
            stack.callback(store.close)
        crew = stack.enter_context(contextlib.closing(Crew(16)))
        # This many agents on two cores would be late, and would cause rounds of their own.
        settings = Settings(AGENTS // 2, AGENTS, workers=8, lease=10.0, seen_within=10.0)
        told = Told()
        agents: list[tuple[str, Watching]] = []
        for index in range(AGENTS):
            node = light_node(index)
            store = stores[index % len(stores)]
            agent = Watching(node, store, Keys("notice"), settings, crew, told.hold, lambda: None)
            agent.told = told
            agents.append((node.id, agent))
        for _, agent in agents:
            agent.start()
        told.wait(lambda: max(told.held.values(), default=0) == AGENTS, "a round of all")
        times = [_notice(agents, told, crew) for _ in range(NOTICES)]
        yield Row(
            f"notice -> all of {AGENTS} agents know", statistics.median(times) * 1e3, "ms", 50
        )


def _notice(agents: list[tuple[str, Watching]], told: Told, crew: Crew) -> float:
    """Return seconds from a notice for the last agent until the others know; that agent leaves."""
    victim, agent = agents.pop()
    others = {name for name, _ in agents}
    known, number, now = len(told.proposals), max(told.held), unbroken()
    started = time.monotonic()
    agent.post(
        Noticed(Notice(InterruptionKind.SPOT_INTERRUPTION, victim, "imds", now, now, now + 120.0))
    )

    def all_know() -> bool:
        crew.check()
        rounds = list(told.proposals.values())
        return len(rounds) > known and rounds[-1].keys() >= others

    told.wait(all_know, "all agents know of a notice")
    last = max(at for name, at in list(told.proposals.values())[-1].items() if name in others)
    told.wait(lambda: told.held[number + 1] == len(others), "a round without the noticed node")
    return last - started


# -- the controller on the local cloud -----------------------------------------------------------


def controlling() -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        (member,) = stack.enter_context(etcd(1))
        store = stack.enter_context(contextlib.closing(EtcdStore([member.endpoint])))
        its = stack.enter_context(account(member.endpoint, NODES))
        until(lambda: len(its.group().members) == NODES, f"{NODES} instances")
        its.register(store)
        controllers = Controllers(its.spec, its.info.region)
        stack.callback(controllers.close)
        leader = until(lambda: _published_leader(its), "a leader")
        until(lambda: all(p.state == "InService" for p in its.group().members), "all in service")
        _rested(controllers)  # The calls of its start are not those of an idle controller.
        calls = _calls(controllers) + (NODES + len(MEMBERS)) * 60.0 / REFRESH
        yield Row(f"calls of AWS, {NODES} idle nodes, a minute", calls, "", 30)
        yield from _replacing(its)
        yield from _succeeding(its, store, controllers, leader)


def _replacing(its: Account) -> Iterator[Row]:
    faults = FaultClient(its.info)
    times = []
    for place in its.group().members[:NOTICES]:
        started = time.monotonic()
        faults.interrupt(place.instance, 120.0)
        until(functools.partial(_leaves, its, place.instance), f"{place.instance} is replaced")
        times.append(time.monotonic() - started)
    yield Row("notice -> replacement asked for", max(times), "s", 2)


def _succeeding(
    its: Account, store: EtcdStore, controllers: Controllers, leader: str
) -> Iterator[Row]:
    until(lambda: its.staying() == NODES, "all places are filled again")
    its.register(store)
    launched = its.launched()
    victim = next(place.instance for place in its.group().members if not place.leaving)
    FaultClient(its.info).interrupt(victim, 120.0)
    started = time.monotonic()
    controllers.kill(leader)
    until(lambda: _published_leader(its) not in ("", leader), "another leads")
    seconds = time.monotonic() - started
    until(lambda: _leaves(its, victim), "the noticed node is replaced")
    until(lambda: its.staying() == NODES, "its place is filled")
    its.register(store)
    _rested(controllers)  # Until then a second replacement could still be launched.
    yield Row("leader killed -> another has reconciled", seconds, "s", LEASE + 2.0)
    yield Row("instances launched twice meanwhile", its.launched() - launched - 1, "", 0)


def _rested(controllers: Controllers) -> None:
    """Wait until the leader asks for nothing any more.

    While there is something to do, it asks every `LoopPace.busy` seconds.
    """
    rest(lambda: int(controllers.calls.value), 2 * LoopPace().busy, "a leader that rests")


def _calls(controllers: Controllers) -> float:
    """Return the calls in a minute: several looks, at equal distances."""
    before = controllers.calls.value
    time.sleep(60.0)
    return float(controllers.calls.value - before)


def _published_leader(its: Account) -> str:
    status = its.objects.status()
    return "" if status is None else status.leader


def _leaves(its: Account, instance: str) -> bool:
    place = its.group().member(instance)
    return place is None or place.leaving


# -- traces --------------------------------------------------------------------------------------


def replaying() -> Iterator[Row]:
    for name in ("bamboo-p3", "bamboo-g4dn"):
        scenario = Scenario(2, 32, step=1.0, state=10e9)
        outcomes = compare(read(TRACES / f"{name}.csv"), scenario, tuple(PLAYED), None)
        for outcome in outcomes:
            what = f"{name}, {outcome.policy}: goodput"
            if outcome is outcomes[0]:
                yield Row(what, outcome.goodput * 100, "%", 97, least=True)
                yield Row(f"{name}: most nodes that train", outcome.most_nodes, "", 32)
            else:
                print(f"{what:58} {outcome.goodput * 100:>8.1f} %     -", flush=True)


def main() -> None:
    parts = {"decide": deciding, "notice": telling, "cloud": controlling, "traces": replaying}
    parser = argparse.ArgumentParser(description="The controller: speed, calls, decisions.")
    parser.add_argument("--only", choices=parts, nargs="+", default=list(parts))
    options = parser.parse_args()
    print(f"{where()}; lease {LEASE:g} s", flush=True)
    for name in options.only:
        for row in parts[name]():
            print(row, flush=True)


if __name__ == "__main__":
    conduct(main)
