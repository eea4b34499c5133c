"""Drives a leading controller over a cloud in memory, in time that the test controls.

A test puts in what comes from outside (messages, commands, objects in the bucket, keys in etcd),
lets the leader take turns, and reads the results: calls to the cloud, published accounts, keys in
etcd.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from support.clusters.recorded_cloud import (
    CloudCalls,
    RecordedBucket,
    RecordedCapacity,
    RecordedCloud,
)
from support.store.memory_store import MemoryStore

from spotelastic.clock import unbroken
from spotelastic.cloud import bucket
from spotelastic.cloud.events import SpotWarning
from spotelastic.cloud.model import Instance, ZoneOffer
from spotelastic.controller.accounting.status import Account
from spotelastic.controller.accounting.usage import Bill
from spotelastic.controller.effects.executor import ControllerExecutor
from spotelastic.controller.effects.inbox import Inbox
from spotelastic.controller.effects.publisher import Publisher
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.etcd.snapshots import Snapshots
from spotelastic.controller.loop.leader_calls import Collaborators, LeaderCalls
from spotelastic.controller.loop.leader_loop import LeaderLoop
from spotelastic.controller.loop.leader_state import (
    CloudView,
    Inputs,
    JobRead,
    LeaderState,
    TakenOver,
)
from spotelastic.controller.loop.turn import Turn
from spotelastic.controller.model.config import ControllerConfig, LoopPace
from spotelastic.controller.model.observation import (
    Discard,
    Message,
    Observation,
    PendingCommand,
    Reply,
)
from spotelastic.model.job import Job, JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Event
from spotelastic.model.requests.command import Command
from spotelastic.notifications.notification import Notification
from spotelastic.notifications.notifier import Notifier
from spotelastic.store.codec import encode
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys

KEYS = Keys("demo")
NODES = ("i-1", "i-2", "i-3")
BORN = 1e9
SPEC = JobSpec(
    "demo", "demo", "train.py", (), "c0de", Settings(1, 3), "s3://bucket/demo", (), born_at=BORN
)
CONFIG = ControllerConfig(SPEC, "i-control", "")
PACE = LoopPace()
STOPPING = f"has {bucket.STOPPING}"
JOB = f"get {bucket.JOB}"

T = TypeVar("T", Message, PendingCommand)


class FakeInbox(Inbox[Any, T]):
    """Without a queue: what a test puts there is pending until it is dealt with."""

    def __init__(self) -> None:
        self.pending: dict[str, T] = {}
        self.known: frozenset[str] = frozenset()

    def put(self, *messages: T) -> None:
        self.pending |= {each.receipt: each for each in messages}

    @property
    def messages(self) -> tuple[T, ...]:
        return tuple(self.pending.values())

    @property
    def handled(self) -> frozenset[str]:
        return self.known

    def settle(self, done: Sequence[object]) -> None:
        for action in done:
            if isinstance(action, Discard):
                if self.pending.pop(action.message.receipt, None) is not None:
                    self.known |= {action.message.event.id}
            elif isinstance(action, Reply):
                self.pending.pop(action.order.receipt, None)

    def close(self) -> None: ...


@dataclass
class FakePublisher(Publisher):
    """Keeps what it is offered; `entries` are what its newest report would say."""

    offered: list[Account] = field(default_factory=list)
    entries: tuple[Event, ...] = ()

    def offer(self, account: Account) -> None:
        self.offered.append(account)

    def settle(self, timeout: float = 5.0) -> bool:
        return True

    def finish(self, timeout: float = 5.0) -> None: ...

    def close(self) -> None: ...


class FakeSnapshots(Snapshots):
    def __init__(self) -> None: ...

    def close(self, timeout: float = 1.0) -> None: ...


@dataclass
class FakeNotifier(Notifier):
    """Keeps what it is to send; `undelivered` is what nobody took."""

    sent: list[Notification] = field(default_factory=list)
    undelivered: tuple[str, ...] = ()

    def offer(self, names: Mapping[str, int], notifications: Sequence[Notification]) -> None:
        assert names, "there is nobody to tell"
        self.sent.extend(notifications)


@dataclass
class FakePrices:
    """The same price for each type that is not listed."""

    spot_usd: dict[str, float] = field(default_factory=dict)
    date: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)

    def spot(self, type: str, zone: str) -> float:
        self.asked.append((type, zone))
        return self.spot_usd.get(type, 1.0)

    def on_demand(self, type: str) -> float:
        return 3.0 * self.spot_usd.get(type, 1 / 3)

    def besides(self, role: str, *, public: bool) -> float:
        return 0.0

    def network(self, nat_gateways: int) -> float:
        return 0.0


class Time:
    """Passes as it is told to; waited for, it has passed at once."""

    def __init__(self) -> None:
        self.begun = unbroken()
        self.now = 1000.0

    def steady(self) -> float:
        return self.now

    def clock(self) -> float:
        return self.begun + self.now - 1000.0


class AlwaysAwake(threading.Event):
    """Wakes the loop without being asked to: something happens all the time."""

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def clear(self) -> None: ...


class Leader:
    """The leader and all that it deals with."""

    def __init__(self) -> None:
        self.time = Time()
        self.log = CloudCalls()
        self.capacity = RecordedCapacity(self.log, self.time.clock)
        self.objects = RecordedBucket("demo", log=self.log)
        self._failed_at = 0.0
        self.pauses: list[float] = []
        """The longest that each pause could have been; it is as long as that."""
        self.events: FakeInbox[Message] = FakeInbox()
        self.commands: FakeInbox[PendingCommand] = FakeInbox()
        self.publisher = FakePublisher()
        self.notifier = FakeNotifier()
        self.prices = FakePrices()
        self.store = MemoryStore(unbroken)
        self.store.put(KEYS.job, encode(Job("running", self.time.clock())))
        for name in NODES:
            self.capacity.has(name, self.time.begun)
            self.joins(name)
        self.loop = self.elect()

    @property
    def calls(self) -> list[str]:
        return self.log.calls

    def elect(self) -> LeaderLoop:
        """A leader that has not taken over yet; the one before leads no more."""
        self.store.delete(KEYS.leader)
        self.mirror = Mirror(KEYS, lambda: None, self.time.clock)
        self.store.watch(KEYS.root, self.mirror)
        leadership = campaign(self.store, KEYS.leader, b"i-control", self.store.grant(1e6))
        assert leadership is not None
        cloud = RecordedCloud(self.log, self.capacity, self.objects, self.prices).cloud
        executor = ControllerExecutor(cloud, self.store, leadership, SPEC.run, lambda: True)
        collaborators = Collaborators(
            executor,
            self.events,
            self.commands,
            self.publisher,
            FakeSnapshots(),
            self.notifier,
        )
        calls = LeaderCalls(
            CONFIG,
            cloud,
            self.mirror,
            collaborators,
            self.time.clock,
            self.time.steady,
            lambda _, high: high,
        )
        state = LeaderState.first(CONFIG, self.capacity.names, self.time.clock())
        self.loop = LeaderLoop(state, calls, collaborators, AlwaysAwake(), PACE)
        return self.loop

    def observed(self) -> Observation:
        """What the leader would decide from now, without messages."""
        records = self.mirror.records()
        inputs = Inputs(self.time.clock(), self.time.now, 1.0, records)
        return self.loop.state.observation(inputs, records, ())

    # -- what happens outside --------------------------------------------------------------------

    def joins(self, name: str, incarnation: str = "1") -> None:
        node = Node(name, f"{name}-{incarnation}", "", "z", Fingerprint())
        self.store.put(KEYS.live(name), encode(node))

    def leaves(self, name: str) -> None:
        self.store.delete(KEYS.live(name))

    def happen(self) -> None:
        """There is another node, or no more."""
        if self.store.get(KEYS.live("i-4")) is None:
            self.joins("i-4")
        else:
            self.leaves("i-4")

    def wants(self, spec: JobSpec) -> None:
        """`up` has written another description of the job."""
        self.objects.objects[bucket.JOB] = msgspec.json.encode(spec)

    def asks(self, command: Command) -> None:
        self.commands.put(PendingCommand("o", command, self.time.clock()))

    # -- turns -----------------------------------------------------------------------------------

    def turn(self) -> float:
        rest = self.loop.turn()
        self.note_pause()
        return rest

    def note_pause(self) -> None:
        """Notes the pause after a failure, once."""
        now = self.loop.state.throttle
        if now.failed_at not in (0.0, self._failed_at):
            self.pauses.append(round(now.resume_at - now.failed_at, 6))
        self._failed_at = now.failed_at

    def turns(self, seconds: float, *, busy: bool = True) -> None:
        """Turns for so long; `busy`: something happens in etcd before each."""
        end = self.time.now + seconds
        while self.time.now < end:
            self.time.now += PACE.turn
            if busy:
                self.happen()
            self.turn()

    def lead(self, seconds: float) -> None:
        """Leads from the start, while something happens in etcd before each turn."""
        self.loop.lead(Until(self, self.time.now + seconds))


@dataclass
class Until(threading.Event):
    """The end of a leadership, at `end`. Time passes while it is waited for."""

    leader: Leader
    end: float

    def wait(self, timeout: float | None = None) -> bool:
        self.leader.note_pause()
        self.leader.time.now += timeout or 0.0
        self.leader.happen()
        return self.is_set()

    def is_set(self) -> bool:
        return self.leader.time.now >= self.end


class FakeCalls(LeaderCalls):
    """The calls of turns in a test, where nothing fails."""

    def __init__(self, job: JobRead) -> None:
        self.read = job

    def complain(self, line: str) -> None: ...  # type: ignore[override]

    def log(self, line: str) -> None: ...

    def zones(self, subnets: tuple[str, ...]) -> tuple[ZoneOffer, ...] | None:
        return None

    def take_over(self) -> TakenOver:
        return TakenOver(self.read, {}, 0.0, None)

    def job(self, types: tuple[str, ...], *, required: bool) -> JobRead | None:
        return self.read

    def instances(self, view: CloudView) -> tuple[Mapping[str, Instance], Bill, str]:
        return self.machines(), {}, ""

    def machines(self) -> Mapping[str, Instance]:
        raise NotImplementedError

    def publish(self, account: Account, *, last: bool) -> tuple[Event, ...]:
        return ()


def take_turn(state: LeaderState, calls: LeaderCalls) -> LeaderState:
    """A turn by itself: the state after it."""
    turn = Turn(state, calls, PACE)
    turn.run()
    return turn.state


def warns(node: str) -> Message:
    return Message(f"r-{node}", SpotWarning(f"e-{node}", unbroken(), node), unbroken())
