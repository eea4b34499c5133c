"""Clusters in virtual time under the controller's decisions, with scripted misfortune.

Nodes come from the provider in memory, which tells of everything late, twice and in any order.
Leaders come and go: a new one knows only what was recorded.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters.memory_capacity import MemoryCapacity, MemoryHooks
from support.draws import drawn

from spotelastic.cloud.events import CloudEvent, SpotWarning
from spotelastic.cloud.model import GroupNames, Instance, ZoneOffer
from spotelastic.controller.decisions.decide import decide, settled
from spotelastic.controller.model.observation import (
    Action,
    CompleteDrain,
    ControllerPolicy,
    DepartedNode,
    Discard,
    DrainNode,
    EndMachine,
    Forget,
    Message,
    Observation,
    Replace,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event

GROUP = "workers"
BOOT = 20.0
LEASE = 2.0
DRAIN = 8.0
WARNING = 120.0
POLICY = ControllerPolicy(boot_within=120.0, silent_for=30.0, strange_for=30.0)


@dataclass
class World:
    """The cloud, the run's keys, and the time."""

    desired: int
    random: random.Random
    now: float = 1000.0
    nodes: dict[str, Node] = field(default_factory=dict)
    left: dict[str, DepartedNode] = field(default_factory=dict)
    drains: dict[str, Drain] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    queue: list[tuple[float, Message]] = field(default_factory=list)
    handled: set[str] = field(default_factory=set)
    due: list[tuple[float, str, str]] = field(default_factory=list)
    """(when, what, instance) that the world itself does."""
    job: Job = Job("running", 1000.0)
    since: float = 1000.0
    most: int = 0
    """The most instances that were to stay at any time."""

    def __post_init__(self) -> None:
        hooks = MemoryHooks(
            launched=lambda instance: self.at(BOOT, "register", instance.id),
            drains=lambda name: self.at(DRAIN, "unregister", name),
            ended=lambda name: self.at(LEASE, "unregister", name),
            emit=self.tell,
            lacks=lambda: None,
        )
        names, zones = GroupNames(GROUP, "on-demand"), (ZoneOffer("z", ("subnet",)),)
        self.cloud = MemoryCapacity(lambda: self.now, hooks, names, zones)

    @property
    def machines(self) -> dict[str, Instance]:
        return {each.id: each for each in self.cloud.instances()}

    @property
    def members(self) -> dict[str, str]:
        return {each.instance: each.state for each in self.cloud.groups()[GROUP].members}

    @property
    def launched(self) -> int:
        return len(self.machines)

    # -- what the cloud and the machines do ------------------------------------------------------

    def at(self, delay: float, what: str, instance: str) -> None:
        self.due.append((self.now + delay, what, instance))

    def tell(self, event: CloudEvent) -> None:
        """Once or twice, and late."""
        for _ in range(self.random.choice((1, 1, 2))):
            arrival = self.now + self.random.uniform(0.0, 5.0)
            receipt = f"r{len(self.queue)}-{self.random.random()}"
            self.queue.append((arrival, Message(receipt, event, arrival)))

    def launch_missing(self) -> None:
        self.cloud.launch_missing()
        staying = [name for name, state in self.members.items() if state == "InService"]
        self.most = max(self.most, len(staying))

    def gone(self, name: str) -> None:
        self.cloud.lose(name)

    def happen(self, what: str, name: str) -> None:
        alive = self.machines[name].state == "running"
        if what == "register" and alive and self.job.state == "running":
            self.nodes[name] = Node(name, f"{name}@{self.now}", "a", "z", Fingerprint())
            self.left.pop(name, None)
        elif what == "unregister" and name in self.nodes:
            self.left[name] = DepartedNode(self.nodes.pop(name).incarnation, self.now)
        elif what == "die":
            self.gone(name)

    def warn(self, name: str, seen_by_agent: bool) -> None:
        self.tell(SpotWarning(f"warn-{name}", self.now, name))
        if seen_by_agent:
            notice = Notice(
                InterruptionKind.SPOT_INTERRUPTION,
                name,
                "imds",
                self.now,
                self.now,
                self.now + WARNING,
            )
            self.drains.setdefault(name, Drain(name, notice))
        self.at(DRAIN, "unregister", name)
        self.at(WARNING, "die", name)

    # -- what the controller does ----------------------------------------------------------------

    def seen(self) -> Observation:
        return Observation(
            desired=self.desired,
            since=self.since,
            job=self.job,
            group=self.cloud.groups()[GROUP],
            machines=self.machines,
            nodes=dict(self.nodes),
            left=dict(self.left),
            drains=dict(self.drains),
            told=frozenset(account(event) for event in self.events),
            messages=tuple(m for arrival, m in self.queue if arrival <= self.now),
            handled=frozenset(self.handled),
        )

    def act(self, action: Action) -> None:
        match action:
            case DrainNode(drain):
                self.drains.setdefault(drain.node, drain)
            case Replace(name):
                assert self.members[name] == "InService"
                self.cloud.replace(name)
            case CompleteDrain(name, group):
                self.cloud.complete_drain(group, name)
            case EndMachine(name):
                self.cloud.end((name,))
            case SetDesired(group, size):
                self.cloud.set_desired(group, size)
            case Forget(node):
                self.happen("unregister", node.id)
            case Tell(event):
                self.events.append(event)
            case Discard(message):
                self.queue = [(at, m) for at, m in self.queue if m.receipt != message.receipt]
                self.handled.add(message.event.id)

    def turn(self) -> None:
        for action in decide(self.seen(), self.now, POLICY).actions:
            self.act(action)
        self.launch_missing()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            ready = sorted(item for item in self.due if item[0] <= self.now)
            self.due = [item for item in self.due if item[0] > self.now]
            for _, what, name in ready:
                self.happen(what, name)
            self.turn()

    def successor(self) -> None:
        """Another controller leads: it knows what is on record, and nothing else."""
        self.handled = set()
        self.since = self.now
        self.left = {}


misfortunes = st.lists(
    st.tuples(
        st.sampled_from(["warning", "warning unseen", "loss", "silence", "new leader"]),
        st.integers(0, 5),
        st.floats(0.0, 40.0),
    ),
    max_size=12,
)


def suffer(world: World, kind: str, index: int) -> None:
    living = sorted(name for name, state in world.members.items() if state == "InService")
    if kind == "new leader":
        world.successor()
    elif living:
        name = living[index % len(living)]
        if kind.startswith("warning"):
            world.warn(name, seen_by_agent=kind == "warning")
        elif kind == "loss":
            world.gone(name)
        else:
            world.happen("unregister", name)


@settings(max_examples=drawn(25), deadline=None)
@given(st.integers(1, 6), st.integers(0, 99), misfortunes)
def test_the_cluster_is_whole_again_after_anything(
    size: int, seed: int, story: list[tuple[str, int, float]]
) -> None:
    world = World(size, random.Random(seed))
    world.run(60.0)
    for kind, index, pause in story:
        suffer(world, kind, index)
        world.run(pause)
    world.run(400.0)
    assert settled(world.seen(), world.now, POLICY)
    assert len(world.nodes) == size
    assert world.queue == []
    assert world.most <= size


@settings(max_examples=drawn(30), deadline=None)
@given(st.integers(0, 99), misfortunes)
def test_after_the_end_nothing_runs_and_nothing_is_launched(
    seed: int, story: list[tuple[str, int, float]]
) -> None:
    world = World(3, random.Random(seed))
    world.run(60.0)
    for kind, index, pause in story:
        suffer(world, kind, index)
        world.run(pause / 10)
    launched = world.launched
    world.job = Job("succeeded", world.now)
    world.nodes.clear()
    world.run(200.0)
    assert world.launched == launched
    assert all(machine.state == "terminated" for machine in world.machines.values())


@pytest.mark.parametrize("seen_by_agent", [True, False])
def test_a_replacement_is_up_before_the_warned_node_is_gone(seen_by_agent: bool) -> None:
    world = World(2, random.Random(7))
    world.run(60.0)
    world.warn("i-1", seen_by_agent)
    world.run(6.0)
    assert world.launched == 3
    world.run(BOOT + 1.0)
    assert set(world.nodes) == {"i-2", "i-3"}
    assert [event.kind for event in world.events] == ["notice"]


def test_every_loss_is_on_record_once_whoever_led() -> None:
    world = World(4, random.Random(3))
    world.run(60.0)
    for name in ("i-1", "i-2", "i-3"):
        world.gone(name)
        world.run(3.0)
        world.successor()
        world.run(60.0)
    losses = [event.node for event in world.events if event.kind == "loss"]
    assert losses == ["i-1", "i-2", "i-3"]
