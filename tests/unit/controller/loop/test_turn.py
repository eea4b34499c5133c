"""A turn of the leader: what it does first, and that no failed call leaves traces."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st
from support.clusters.leading_controller import CONFIG, NODES, FakeCalls, take_turn, warns

from spotelastic.cloud.model import GroupMember, GroupNames, Instance, LaunchQuotas, WorkerGroup
from spotelastic.controller.accounting.status import Account
from spotelastic.controller.accounting.usage import Bill
from spotelastic.controller.decisions.housekeeping import Teardown
from spotelastic.controller.loop.leader_state import (
    AnyAction,
    CloudView,
    Inputs,
    JobRead,
    LeaderState,
    TakenOver,
)
from spotelastic.controller.model.observation import Message, Records, Replace
from spotelastic.errors import Unavailable
from spotelastic.model.gpu import GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event

NAMES = GroupNames("spot", "on-demand")
GROUP = WorkerGroup("spot", len(NODES), tuple(GroupMember(name, "InService") for name in NODES))
INSTANCES = {
    name: Instance(name, "worker", "running", "g5.xlarge", "z", "", True, 0.0) for name in NODES
}
RECORDS = Records(
    job=Job("running", 0.0),
    nodes={name: Node(name, f"{name}-1", "", "z", Fingerprint()) for name in NODES},
)
JOB = JobRead(False, CONFIG.spec, LaunchQuotas())
FIRST = LeaderState.first(CONFIG, NAMES, 1.0)


LOOKS = "take over", "job", "groups", "instances"


@dataclass
class World(FakeCalls):
    """Each call fails or succeeds as told, and warnings come as told."""

    fails: Iterator[bool] = field(default_factory=lambda: iter(()))
    warned: Iterator[str] = field(default_factory=lambda: iter(()))
    now: float = 100.0
    messages: tuple[Message, ...] = ()
    replaced: set[str] = field(default_factory=set)
    records: Records = RECORDS
    read: JobRead = JOB
    asked: list[tuple[str, object, tuple[Message, ...]]] = field(default_factory=list)
    """The calls: each with what it was given, and the messages that had come by its end."""

    def inputs(self) -> Inputs:
        self.now += 0.01
        return Inputs(self.now, self.now, 1.0, self.records, self.messages)

    def called(self, name: str, given: object = None) -> bool:
        """Note a call; whether it is made."""
        fails = next(self.fails, False)
        if node := next(self.warned, ""):
            self.messages += (warns(node),)
        self.asked.append((name, given, self.messages))
        if fails and name in LOOKS:
            raise Unavailable("AWS is busy")
        return not fails

    def take_over(self) -> TakenOver:
        self.called("take over")
        return super().take_over()

    def job(self, types: tuple[str, ...], *, required: bool) -> JobRead | None:
        self.called("job")
        return self.read

    def groups(self) -> Mapping[str, WorkerGroup]:
        self.called("groups")
        return {"spot": GROUP}

    def instances(self, view: CloudView) -> tuple[Mapping[str, Instance], Bill, str]:
        self.called("instances")
        return INSTANCES, {}, ""

    def perform(self, actions: Sequence[AnyAction]) -> tuple[AnyAction, ...]:
        done = tuple(actions) if self.called("perform", actions) else ()
        self.replaced |= {each.instance for each in done if isinstance(each, Replace)}
        return done

    def publish(self, account: Account, *, last: bool) -> tuple[Event, ...]:
        self.called("publish", account if last else None)
        return ()


def leading() -> LeaderState:
    return take_turn(FIRST, World())


@given(st.lists(st.booleans(), max_size=40), st.lists(st.sampled_from(["", *NODES]), max_size=40))
def test_whatever_fails_a_warned_node_is_tried_before_the_next_look(
    fails: list[bool], warned: list[str]
) -> None:
    """Two minutes are running; a look at a busy cloud may take all of them."""
    state, world = leading(), World(fails=iter(fails), warned=iter(warned))
    for _ in range(5):
        tried: set[str] = set()
        known: set[str] = {message.warns for message in world.messages}
        world.asked.clear()
        state = take_turn(state, world)
        for name, what, messages in world.asked:
            if isinstance(what, list | tuple):
                tried |= {each.instance for each in what if isinstance(each, Replace)}
            elif name in LOOKS[1:]:
                due = known - tried - world.replaced - state.warnings.missed
                assert not due, (name, due)
            known = {message.warns for message in messages}
        world.now += 1.0


def test_sick_nodes_wait_for_the_look_that_tells_how_many_are_replaced() -> None:
    """The short way, which replaces a node under notice before that, would replace all of them."""
    sick = [GpuFault("x", "kernel", "xid 79").event(f"i-old{n}", 99.0, joined=True) for n in "abc"]
    sick += [GpuFault("x", "kernel", "xid 79").event("i-1", 99.0, joined=True)]
    notice = Notice(InterruptionKind.UNHEALTHY, "i-1", "health", 99.0, 99.0)
    drains = {"i-1": Drain("i-1", notice)}
    world = World(records=replace(RECORDS, drains=drains, events=tuple(sick)))
    take_turn(leading(), world)
    assert world.replaced == set()
    one = World(records=replace(RECORDS, drains=drains, events=tuple(sick[-1:])))
    take_turn(leading(), one)
    assert one.replaced == {"i-1"}


@given(st.lists(st.booleans(), max_size=60))
def test_what_failed_before_does_not_matter_once_the_cloud_answers_again(
    fails: list[bool],
) -> None:
    world, state = World(fails=iter(fails)), FIRST
    for _ in range(len(fails) + 5):
        state = take_turn(state, world)
        world.now += 100.0
    assert state.taken_over
    assert state.view.groups == {"spot": replace(GROUP)}
    assert set(state.view.instances) == set(NODES)
    assert state.throttle.looks.failures == 0


def test_a_cluster_that_does_not_linger_publishes_the_end_before_it_goes() -> None:
    """Who watches waits for the job's end."""
    assert CONFIG.spec is not None
    job = replace(JOB, spec=replace(CONFIG.spec, linger=0.0))
    ended = replace(RECORDS, job=Job("succeeded", 99.0))
    world = World(records=ended, read=job)
    take_turn(FIRST, world)
    told = [isinstance(it, Account) and it.records.job == ended.job for _, it, _ in world.asked]
    goes = [
        isinstance(given, tuple) and any(isinstance(it, Teardown) for it in given)
        for _, given, _ in world.asked
    ]
    assert told.index(True) < goes.index(True)
