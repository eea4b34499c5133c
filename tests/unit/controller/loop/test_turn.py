"""A turn of the leader is a pure step: from its state and the answers to its requests alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st
from support.clusters.leading_controller import CONFIG, NODES, CloudAnswers, take_turn, warns

from spotelastic.cloud.model import GroupMember, GroupNames, Instance, LaunchQuotas, WorkerGroup
from spotelastic.controller.decisions.housekeeping import Teardown
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.loop.requests import (
    AnyAction,
    Failed,
    Inputs,
    JobRead,
    LookAtGroups,
    LookAtInstances,
    LookAtJob,
    Perform,
    Publish,
    Request,
    Result,
    StepAnswer,
    TakeOver,
)
from spotelastic.controller.model.observation import Message, Records, Replace
from spotelastic.model.gpu import GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice

NAMES = GroupNames("spot", "on-demand")
GROUP = WorkerGroup("spot", len(NODES), tuple(GroupMember(name, "InService") for name in NODES))
INSTANCES = {
    name: Instance(name, "worker", "running", "g5.xlarge", "z", "", True, 0.0) for name in NODES
}
RECORDS = Records(
    job=Job("running", 0.0),
    nodes={name: Node(name, f"{name}-1", "", "z", Fingerprint()) for name in NODES},
    healthy=True,
)
JOB = JobRead(False, CONFIG.spec, LaunchQuotas())
FIRST = LeaderState.first(CONFIG, NAMES, 1.0)


@dataclass
class World:
    """Answers requests: each fails or succeeds as told, and warnings come as told."""

    fails: Iterator[bool] = field(default_factory=lambda: iter(()))
    warned: Iterator[str] = field(default_factory=lambda: iter(()))
    now: float = 100.0
    messages: tuple[Message, ...] = ()
    replaced: set[str] = field(default_factory=set)
    records: Records = RECORDS
    job: JobRead = JOB
    asked: list[tuple[Request, Result, Inputs]] = field(default_factory=list)

    def inputs(self) -> Inputs:
        self.now += 0.01
        return Inputs(self.now, self.now, 1.0, self.records, self.messages)

    def answer(self, request: Request) -> StepAnswer:
        result = self._result(request)
        if node := next(self.warned, ""):
            self.messages += (warns(node),)
        answer = StepAnswer(result, self.inputs())
        self.asked.append((request, result, answer.inputs))
        return answer

    def _result(self, request: Request) -> Result:
        fails = next(self.fails, False)
        if fails and isinstance(request, TakeOver | LookAtJob | LookAtGroups | LookAtInstances):
            return Failed("AWS is busy")

        def perform(actions: Sequence[AnyAction]) -> Sequence[AnyAction]:
            done = () if fails else actions
            self.replaced |= {each.instance for each in done if isinstance(each, Replace)}
            return done

        return CloudAnswers(self.job, lambda: {"spot": GROUP}, lambda: INSTANCES, perform)(request)


def leading() -> LeaderState:
    world = World()
    return take_turn(FIRST, world.inputs(), world.answer)


def test_a_turn_is_repeated_from_its_answers_alone() -> None:
    world = World(fails=iter([False, False, False, True]), warned=iter(["", "", "i-1"]))
    first = world.inputs()
    state = take_turn(leading(), first, world.answer)
    recorded = iter(world.asked)

    def again(request: Request) -> StepAnswer:
        asked, result, inputs = next(recorded)
        assert request == asked
        return StepAnswer(result, inputs)

    assert take_turn(leading(), first, again) == state
    assert next(recorded, None) is None


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
        state = take_turn(state, world.inputs(), world.answer)
        for request, _, inputs in world.asked:
            if isinstance(request, Perform):
                tried |= {each.instance for each in request.actions if isinstance(each, Replace)}
            elif isinstance(request, LookAtJob | LookAtGroups | LookAtInstances):
                due = known - tried - world.replaced - state.warnings.missed
                assert not due, (request, due)
            known = {message.warns for message in inputs.messages}
        world.now += 1.0


def test_sick_nodes_wait_for_the_look_that_tells_how_many_are_replaced() -> None:
    """The short way, which replaces a node under notice before that, would replace all of them."""
    sick = [GpuFault("x", "kernel", "xid 79").event(f"i-old{n}", 99.0, joined=True) for n in "abc"]
    sick += [GpuFault("x", "kernel", "xid 79").event("i-1", 99.0, joined=True)]
    notice = Notice(InterruptionKind.UNHEALTHY, "i-1", "health", 99.0, 99.0)
    drains = {"i-1": Drain("i-1", notice)}
    world = World(records=replace(RECORDS, drains=drains, events=tuple(sick)))
    take_turn(leading(), world.inputs(), world.answer)
    assert world.replaced == set()
    one = World(records=replace(RECORDS, drains=drains, events=tuple(sick[-1:])))
    take_turn(leading(), one.inputs(), one.answer)
    assert one.replaced == {"i-1"}


@given(st.lists(st.booleans(), max_size=60))
def test_what_failed_before_does_not_matter_once_the_cloud_answers_again(
    fails: list[bool],
) -> None:
    world, state = World(fails=iter(fails)), FIRST
    for _ in range(len(fails) + 5):
        state = take_turn(state, world.inputs(), world.answer)
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
    world = World(records=ended, job=job)
    take_turn(FIRST, world.inputs(), world.answer)
    requests = [request for request, _, _ in world.asked]
    told = [
        isinstance(each, Publish) and each.last and each.account.records.job == ended.job
        for each in requests
    ]
    goes = [
        isinstance(each, Perform) and any(isinstance(it, Teardown) for it in each.actions)
        for each in requests
    ]
    assert told.index(True) < goes.index(True)
