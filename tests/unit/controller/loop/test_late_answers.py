"""A cloud whose answers are from seconds ago: nothing is launched, replaced or removed twice."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.clusters.leading_controller import CONFIG, PACE, FakeCalls, take_turn, warns
from support.clusters.memory_capacity import MemoryCapacity

from spotelastic.cloud.events import StateChange
from spotelastic.cloud.memory.memory_capacity import NAMES
from spotelastic.cloud.model import GroupMember, Instance, LaunchQuotas, WorkerGroup
from spotelastic.controller.decisions import interruptions
from spotelastic.controller.loop.leader_state import (
    SHOWN_WITHIN,
    AnyAction,
    Inputs,
    JobRead,
    LeaderState,
    groups_now,
    instances_now,
)
from spotelastic.controller.model.observation import (
    CompleteDrain,
    Message,
    Observation,
    Records,
    Remove,
    Replace,
    SetDesired,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice

START = 1000.0
OLDEST = 30.0
"""Seconds by which an answer may be old."""


@dataclass
class Late(FakeCalls):
    """A cloud in memory, each answer of which is from some changes ago, and its one leader."""

    ages: list[int]
    """How many changes old the next answers are; later ones are new."""
    wanted: int = 3
    now: float = START
    state: LeaderState = field(init=False)
    gone: Counter[str] = field(default_factory=Counter)
    """How often each instance was told to end."""
    warned: set[str] = field(default_factory=set)
    most: int = 0
    past: list[tuple[Mapping[str, WorkerGroup], Mapping[str, Instance]]] = field(
        default_factory=list
    )
    """What the cloud was, after each change."""
    until: list[float] = field(default_factory=list)
    """When each of these was over."""

    def __post_init__(self) -> None:
        self.cloud = MemoryCapacity(lambda: self.now)
        self.cloud.set_desired(NAMES.spot, self.wanted)
        self.state = LeaderState.first(CONFIG, NAMES, START)
        self.changed()

    @property
    def staying(self) -> list[str]:
        group = self.cloud.groups()[NAMES.spot]
        return [each.instance for each in group.members if not each.leaving]

    def changed(self) -> None:
        instances = {each.id: each for each in self.cloud.instances()}
        self.until.append(self.now)
        self.past.append((self.cloud.groups(), instances))
        self.most = max(self.most, len(self.staying))

    def take_turn(self) -> None:
        self.now += PACE.idle  # each turn looks
        settings = replace(CONFIG.spec.settings, max_nodes=self.wanted)
        self.read = JobRead(False, replace(CONFIG.spec, settings=settings), LaunchQuotas())
        self.state = take_turn(self.state, self)

    def inputs(self) -> Inputs:
        self.now += 0.01
        alive = [each.id for each in self.cloud.instances() if each.state == "running"]
        records = Records(
            job=Job("running", START),
            nodes={name: Node(name, f"{name}-1", "", "z", Fingerprint()) for name in alive},
            drains={name: Drain(name, self.notice(name)) for name in self.warned},
        )
        return Inputs(self.now, self.now, 1.0, records)

    def notice(self, name: str) -> Notice:
        kind = InterruptionKind.SPOT_INTERRUPTION
        return Notice(kind, name, "imds", self.now, self.now, START + 1e6)

    def seen(self) -> tuple[Mapping[str, WorkerGroup], Mapping[str, Instance]]:
        lately = sum(until > self.now - OLDEST for until in self.until[1:])
        age = min(lately, self.ages.pop(0) if self.ages else 0)
        return self.past[len(self.past) - 1 - age]

    def groups(self) -> Mapping[str, WorkerGroup]:
        return self.seen()[0]

    def machines(self) -> Mapping[str, Instance]:
        return self.seen()[1]

    def perform(self, actions: Sequence[AnyAction]) -> tuple[AnyAction, ...]:
        for action in actions:
            self.act(action)
        return tuple(actions)

    def act(self, action: object) -> None:
        match action:
            case Replace(instance):
                self.gone[instance] += 1
                self.cloud.replace(instance)
            case Remove(instance):
                self.gone[instance] += 1
                self.cloud.remove(instance)
            case SetDesired(group, size):
                self.cloud.set_desired(group, size)
            case CompleteDrain(instance, group):
                self.cloud.complete_drain(group, instance)
        self.changed()


EVENTS = st.one_of(
    st.tuples(st.just("warn"), st.integers(0, 5)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("scale"), st.integers(1, 5)),
    st.tuples(st.just("nothing"), st.just(0)),
)


@example(events=[("nothing", 0), ("scale", 2), ("nothing", 0)], ages=[0, 0, 0, 0, 9, 0])
@example(events=[("nothing", 0), ("warn", 0), ("nothing", 0)], ages=[0, 0, 0, 0, 9, 9])
@given(
    events=st.lists(EVENTS, max_size=12),
    ages=st.lists(st.integers(0, 6), max_size=60),
)
def test_old_answers_launch_and_end_nothing_twice(
    events: list[tuple[str, int]], ages: list[int]
) -> None:
    world = Late(list(ages))
    sizes = [world.wanted]
    for kind, which in events:
        staying = world.staying
        if kind == "scale":
            world.wanted = which
            sizes.append(which)
        elif kind != "nothing" and staying:
            name = staying[which % len(staying)]
            world.warned |= {name} if kind == "warn" else set()
            if kind == "lose":
                world.cloud.lose(name)
            world.changed()
        world.take_turn()
    world.ages.clear()
    for _ in range(8):
        world.take_turn()
    assert max(world.gone.values(), default=0) <= 1, world.gone
    assert world.most <= max(sizes)
    assert len(world.staying) == world.wanted
    assert not world.warned & set(world.staying)


GROUP = WorkerGroup("spot", 3, tuple(GroupMember(name, "InService") for name in "abc"))


def test_what_was_removed_leaves_and_its_group_is_smaller_by_one_however_old_the_answer() -> None:
    removed = {"a": Remove("a", "fewer nodes")}
    (old,) = groups_now({"spot": GROUP}, removed).values()
    assert (old.desired, old.staying) == (2, 2)
    leaving = (GroupMember("a", "Terminating:Wait"), *GROUP.members[1:])
    new = replace(GROUP, desired=2, members=leaving)
    assert groups_now({"spot": new}, removed) == {"spot": new}
    gone = replace(GROUP, desired=2, members=GROUP.members[1:])
    assert groups_now({"spot": gone}, removed) == {"spot": gone}


@pytest.mark.parametrize(
    ("before", "found", "now"),
    [
        ("terminated", "running", "terminated"),
        ("shutting-down", "running", "shutting-down"),
        ("terminated", "shutting-down", "terminated"),
        ("shutting-down", "terminated", "terminated"),
        ("running", "pending", "pending"),
        ("stopped", "running", "running"),
    ],
)
def test_no_instance_comes_back_to_life(before: str, found: str, now: str) -> None:
    known = Instance("a", "worker", "running", "g5.xlarge", "z", "", True, START)

    def shown(state: str) -> dict[str, Instance]:
        return {"a": replace(known, state=state)}  # type: ignore[arg-type]

    assert instances_now(shown(before), shown(found), START) == shown(now)


def test_an_answer_without_a_new_instance_is_older_and_one_without_an_old_one_is_not() -> None:
    known = {"a": Instance("a", "worker", "running", "g5.xlarge", "z", "", True, START)}
    assert instances_now(known, {}, START + SHOWN_WITHIN - 1.0) == known
    assert instances_now(known, {}, START + SHOWN_WITHIN) == {}
    ended = {"a": replace(known["a"], state="terminated")}
    assert instances_now(ended, {}, START) == {}


@pytest.mark.parametrize("known", ["nodes", "group", "machines"])
def test_a_warning_for_a_node_that_ec2_does_not_show_yet_is_no_stranger_s(known: str) -> None:
    node = Node("a", "a-1", "", "z", Fingerprint())
    machine = Instance("a", "worker", "running", "g5.xlarge", "z", "", True, START)
    seen = Observation(
        desired=1,
        since=START,
        group=GROUP if known == "group" else None,
        nodes={"a": node} if known == "nodes" else {},
        machines={"a": machine} if known == "machines" else {},
        messages=(warns("a"),),
    )
    (drain,) = (each for each in interruptions.read(seen, START) if hasattr(each, "drain"))
    assert drain.drain.node == "a"


def test_a_change_of_an_instance_of_somebody_else_is_still_foreign() -> None:
    told = Message("r", StateChange("e", START, "z", "terminated"), START)
    seen = Observation(desired=1, since=START, group=GROUP, messages=(told,))
    (action,) = interruptions.read(seen, START)
    assert getattr(action, "fate") == "foreign"  # noqa: B009
