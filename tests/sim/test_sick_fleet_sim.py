"""A fleet in which every node falls ill, under the controller's decisions, in virtual time.

What must not happen is that it is bought again and again. Nodes come from the provider in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from support.clusters.memory_capacity import MemoryCapacity, MemoryHooks

from spotelastic.cloud.model import GroupNames, Instance, ZoneOffer
from spotelastic.controller.decisions import health
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.decisions.housekeeping import (
    ClusterState,
    HousekeepingPolicy,
    upkeep,
)
from spotelastic.controller.model.observation import (
    CompleteDrain,
    ControllerPolicy,
    DrainNode,
    EndJobAtOnce,
    Observation,
    Remove,
    Replace,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.gpu import GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event

GROUP = "workers"
BOOT, LEAVES, LOOK, FAILS = 120.0, 10.0, 10.0, 60.0
POLICY, UPKEEP = ControllerPolicy(), HousekeepingPolicy()
FAULT = GpuFault("Xid 94, a memory error", "kernel", "xid 94", "0000:1b:00", 94)


@dataclass
class Fleet:
    """Every node falls ill `lives` seconds after it has joined; 0: it stays well."""

    desired: int
    least: int
    lives: Callable[[int], float]
    fails: Callable[[int], bool] = lambda _: False
    """Whether a node's worker fails again and again, before any other."""
    now: float = 1000.0
    nodes: dict[str, Node] = field(default_factory=dict)
    drains: dict[str, Drain] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    due: list[tuple[float, str, str]] = field(default_factory=list)
    job: Job = Job("running", 1000.0)

    def __post_init__(self) -> None:
        hooks = MemoryHooks(
            launched=lambda instance: self.at(BOOT, "joins", instance.id),
            drains=lambda name: self.at(LEAVES, "goes", name),
            lacks=lambda: None,
        )
        names, zones = GroupNames(GROUP, "on-demand"), (ZoneOffer("z", ("subnet",)),)
        self.cloud = MemoryCapacity(lambda: self.now, hooks, names, zones)
        self.cloud.set_desired(GROUP, self.desired)
        self.cloud.launch_missing()

    def at(self, delay: float, what: str, name: str) -> None:
        self.due.append((self.now + delay, what, name))

    @property
    def machines(self) -> dict[str, Instance]:
        return {each.id: each for each in self.cloud.instances()}

    @property
    def launched(self) -> int:
        return len(self.machines)

    def seen(self) -> Observation:
        return Observation(
            desired=self.desired,
            least=self.least,
            since=1000.0,
            job=self.job,
            group=self.cloud.groups()[GROUP],
            machines=self.machines,
            nodes=dict(self.nodes),
            drains=dict(self.drains),
            told=frozenset(account(event) for event in self.events),
            events=tuple(self.events),
        )

    def happen(self, what: str, name: str) -> None:
        if what == "joins" and self.machines[name].state == "running":
            self.nodes[name] = Node(name, name, "a", "z", Fingerprint())
            lives = self.lives(int(name.rpartition("-")[2]))
            if lives:
                self.at(lives, "falls ill", name)
            if self.fails(int(name.rpartition("-")[2])):
                self.at(FAILS, "fails", name)
        elif what == "fails" and name in self.nodes and self.job.state == "running":
            data = {"round": f"r{self.now}", "rank": 0}
            self.events.append(Event(self.now, "failure", "x", name, data))
            self.at(FAILS, "fails", name)
        elif what == "falls ill" and name in self.nodes:
            self.events.append(FAULT.event(name, self.now, joined=True))
            notice = Notice(InterruptionKind.UNHEALTHY, name, "health", self.now, self.now)
            self.drains[name] = Drain(name, notice)
            self.at(LEAVES, "goes", name)
        elif what == "goes":
            self.nodes.pop(name, None)

    def turn(self) -> None:
        state = ClusterState(self.least, joined=frozenset(self.nodes))
        kept = upkeep(self.seen(), state, self.now, UPKEEP)
        seen = replace(self.seen(), desired=kept.desired, hopeless=kept.hopeless)
        for action in (*kept.actions, *decide(seen, self.now, POLICY).actions):
            match action:
                case EndJobAtOnce(job):
                    self.job = job
                case DrainNode(drain):
                    self.drains.setdefault(drain.node, drain)
                    self.at(LEAVES, "goes", drain.node)
                case Replace(name):
                    self.cloud.replace(name)
                case Remove(name):
                    self.cloud.remove(name)
                case CompleteDrain(name, group):
                    self.cloud.complete_drain(group, name)
                case SetDesired(group, size):
                    self.cloud.set_desired(group, size)
                case Tell(event):
                    self.events.append(event)
        self.cloud.launch_missing()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK
            ready = sorted(item for item in self.due if item[0] <= self.now)
            self.due = [item for item in self.due if item[0] > self.now]
            for _, what, name in ready:
                self.happen(what, name)
            self.turn()


@pytest.mark.parametrize(("desired", "least"), [(1, 1), (2, 2), (2, 1), (16, 4), (16, 16)])
def test_a_fleet_that_is_sick_as_a_whole_is_not_replaced_for_ever(desired: int, least: int) -> None:
    fleet = Fleet(desired, least, lambda _: 30.0)
    fleet.run(3600.0)
    assert fleet.job.state == "failed"
    assert "Xid 94, a memory error. All had the same" in fleet.job.reason
    assert fleet.launched <= desired + health.replaceable(desired)
    assert all(machine.state == "terminated" for machine in fleet.machines.values())


def test_one_sick_node_is_replaced_and_the_job_goes_on() -> None:
    fleet = Fleet(4, 4, lambda number: 60.0 if number == 2 else 0.0)
    fleet.run(1800.0)
    assert fleet.job.state == "running"
    assert (fleet.launched, len(fleet.nodes)) == (5, 4)


def test_nodes_that_fall_ill_now_and_then_are_replaced_each_time() -> None:
    """Once in an hour or two each, and never too many within one."""
    fleet = Fleet(4, 4, lambda number: 3600.0 + 1900.0 * (number % 4))
    fleet.run(4 * 3600.0)
    assert fleet.job.state == "running"
    assert fleet.launched > 6
    assert len(fleet.nodes) >= 3


def test_a_job_that_became_smaller_grows_again_when_the_hour_is_over() -> None:
    fleet = Fleet(8, 2, lambda number: 30.0 if number <= 5 else 0.0)
    fleet.run(600.0)
    assert fleet.job.state == "running"
    assert len(fleet.nodes) == 6, "three of five were replaced"
    fleet.run(3600.0)
    assert len(fleet.nodes) == 8


def test_a_node_that_always_fails_first_is_replaced() -> None:
    fleet = Fleet(4, 4, lambda _: 0.0, fails=lambda number: number == 2)
    fleet.run(1200.0)
    assert (fleet.launched, len(fleet.nodes)) == (5, 4)
    assert sum(event.kind == "failure" for event in fleet.events) == health.IN_A_ROW


def test_and_no_other_one_if_its_replacement_does_the_same() -> None:
    """It is the script then, which fails on one of its ranks: the restart budget ends it."""
    fleet = Fleet(4, 4, lambda _: 0.0, fails=lambda number: number in (2, 5, 6, 7))
    fleet.run(1800.0)
    assert fleet.launched == 5
    assert sum(event.kind == "unhealthy" for event in fleet.events) == 1
