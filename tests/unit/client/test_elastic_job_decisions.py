"""What the operator decides for an ElasticJob: a world of values, killed anywhere, comes right."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.emulated_kubernetes.api import custom
from support.kubernetes.operator_parts import definition

from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.operator.operator_decision import (
    REST_EVERY,
    OperatorDecision,
    ResourceSeen,
    decide,
)
from spotelastic.client.operator.resource import JobResource
from spotelastic.client.operator.told import SpecRefusal
from spotelastic.model.progress import Event, NodeStatus, Status

UID = "u-1"
KIND = custom.kinds_of(definition())[0]


def resource(**given: Any) -> JobResource:
    values: dict[str, Any] = {
        "name": "gpt", "uid": UID, "generation": 1, "is_deleted": False, "is_held": True,
        "spec": {"image": "x", "storage": "s3://b/r"}, "status": {},
    }  # fmt: skip
    return JobResource(**values | given)


def published(state: str = "running", nodes: int = 2, step: int = 7) -> Status:
    rows = tuple(NodeStatus(f"n{each}", "worker", "training", "", "") for each in range(nodes))
    return Status("gpt", state, 5.0, step=step, reason=f"it is {state}", nodes=rows)


def seen(**given: Any) -> ResourceSeen:
    values: dict[str, Any] = {
        "resource": resource(), "digest": "d", "root": "ours", "has_job": True,
        "mark": ClusterMark(UID, "d", 1), "published": published(),
    }  # fmt: skip
    return ResourceSeen(**values | given)


def conditions(decision: OperatorDecision) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in decision.status["conditions"]}


ENDED = {
    "state": "succeeded",
    "conditions": [
        {"type": "Succeeded", "status": "True", "reason": "Succeeded", "message": ""}
        | {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    ],
}
marks = st.none() | st.builds(
    ClusterMark, st.sampled_from([UID, "u-2"]), st.sampled_from(["", "d", "e"]), st.integers(0, 2)
)
states = ("pending", "running", "succeeded", "failed", "stopped", "timed out")
anything = st.builds(
    ResourceSeen,
    resource=st.builds(
        resource,
        is_deleted=st.booleans(),
        is_held=st.booleans(),
        generation=st.integers(1, 2),
        status=st.sampled_from([{}, ENDED]),
    ),
    refusal=st.none() | st.just(SpecRefusal("Invalid", "spec.min 9")),
    digest=st.sampled_from(["d", "e"]),
    drift=st.sampled_from([(), ("max 2 -> 4",)]),
    root=st.sampled_from(["none", "ours", "other", "ending"]),
    mark=marks,
    has_job=st.booleans(),
    is_whole=st.booleans(),
    has_pods=st.booleans(),
    hindrance=st.sampled_from(["", 'pods "gpt-x" is forbidden: exceeded quota']),
    linger=st.none() | st.sampled_from([0.0, 1e12]),
    anything_left=st.booleans(),
    published=st.none() | st.builds(published, st.sampled_from(states)),
    events=st.lists(st.builds(Event, st.floats(0, 9), st.just("round"), st.just("m")), max_size=30),
)  # fmt: skip


@given(anything)
def test_what_must_never_happen_is_never_decided(it: ResourceSeen) -> None:
    decision = decide(it, 100.0)
    step, its = decision.step, it.resource
    if step in ("create", "change"):
        assert its.is_held and not its.is_deleted, "it could be left behind"
        assert not it.has_ended, "a job that has ended is begun again"
        assert it.refusal is None and it.root not in ("other", "ending")
        assert not (it.root == "none" and it.has_pods), "its end may not be published yet"
    if step == "end":
        assert it.has_ended and it.root == "ours" and it.linger == 0.0
    if step == "take down":
        assert its.is_deleted and its.is_held and it.is_ours, "another's cluster"
    if step == "let go":
        assert not (it.is_ours and it.anything_left), "something is left"
    assert 0 < decision.look_again <= REST_EVERY
    manifest = {"metadata": {"name": its.name}, "spec": dict(its.spec)}
    manifest |= {"status": dict(decision.status)}
    assert custom.fitted(KIND, definition(), manifest) == manifest, "the schema knows all of it"


@given(anything)
def test_an_event_that_is_told_again_has_the_same_name(it: ResourceSeen) -> None:
    first, again = (decide(it, now).events for now in (100.0, 200.0))
    assert [each.name for each in first] == [each.name for each in again]
    assert len({each.name for each in first}) == len(first)


@given(anything)
def test_a_status_that_was_written_is_not_written_again(it: ResourceSeen) -> None:
    quiet = replace(it, events=())
    before = dict(decide(quiet, 100.0).status)
    written = replace(quiet, resource=replace(it.resource, status=before))
    assert decide(written, 200.0).status == before
    assert written.has_ended == quiet.has_ended


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        ("pending", set()),
        ("running", {"Running"}),
        ("succeeded", {"Succeeded"}),
        ("failed", {"Failed"}),
        ("timed out", {"Failed"}),
        ("stopped", set()),
    ],
)
def test_conditions_say_how_the_job_is_doing(state: str, holds: set[str]) -> None:
    decision = decide(seen(published=published(state)), 100.0)
    found = {name for name, each in conditions(decision).items() if each["status"] == "True"}
    assert found == {"Accepted", *holds}
    assert {each["observedGeneration"] for each in decision.status["conditions"]} == {1}
    assert (decision.status["state"], decision.status["step"]) == (state, 7)
    assert decision.status["nodes"] == 2


def test_a_refused_change_leaves_the_cluster_alone_and_says_why() -> None:
    decision = decide(seen(refusal=SpecRefusal("Invalid", "spec.storage: no")), 100.0)
    accepted = conditions(decision)["Accepted"]
    assert (accepted["status"], accepted["message"]) == ("False", "spec.storage: no")
    assert decision.step == "none" and conditions(decision)["Running"]["status"] == "True"
    assert [each.reason for each in decision.events] == ["Refused", "Running"]


def test_another_cluster_of_the_name_is_neither_shown_nor_taken_down() -> None:
    theirs = seen(root="other", mark=None)
    decision = decide(theirs, 100.0)
    assert conditions(decision)["Accepted"]["reason"] == "NameTaken"
    assert decision.status["state"] == "refused" and decision.step == "none"
    gone = replace(theirs, resource=resource(is_deleted=True), anything_left=True)
    assert decide(gone, 100.0).step == "let go"


def test_a_job_that_has_ended_is_not_begun_again_once_its_cluster_is_gone() -> None:
    ended = seen(root="none", published=published("succeeded"))
    decision = decide(ended, 100.0)
    assert decision.step == "none"
    later = resource(status=dict(decision.status))
    last = decide(ResourceSeen(later, digest="d"), 200.0)
    assert (last.step, last.status["state"]) == ("none", "succeeded")
    assert conditions(last)["Succeeded"]["reason"] == "Succeeded"
    changed = replace(ended, resource=resource(generation=2), digest="e")
    assert conditions(decide(changed, 300.0))["Accepted"]["reason"] == "JobEnded"


def test_a_control_pod_that_went_with_its_first_object_is_made_again() -> None:
    assert decide(seen(is_whole=False), 100.0).step == "change"
    assert decide(seen(root="none", is_whole=False), 100.0).step == "create"


def test_a_cluster_lingers_after_its_job_which_is_on_record_then() -> None:
    ended = seen(published=published("succeeded"), linger=60.0)
    first = decide(ended, 100.0)
    assert (first.step, first.look_again) == ("none", REST_EVERY)
    later = replace(ended, resource=resource(status=dict(first.status)))
    assert decide(later, 150.0).look_again == 10.0
    assert decide(later, 160.0).step == "end"
    assert decide(replace(later, published=published()), 160.0).step == "none", "restarted"


def test_nothing_is_made_while_pods_of_a_cluster_that_goes_are_left() -> None:
    going = seen(root="none", has_pods=True)
    assert decide(going, 100.0).step == "none"
    gone = replace(going, has_pods=False, published=published("succeeded"))
    assert decide(gone, 100.0).step == "none"
    assert decide(replace(going, has_pods=False), 100.0).step == "create", "by somebody"


def test_a_job_that_was_restarted_runs_again() -> None:
    status = decide(seen(published=published("failed")), 100.0).status
    again = decide(seen(resource=resource(status=dict(status))), 200.0)
    assert conditions(again)["Failed"]["status"] == "False"
    assert "Running" in [each.reason for each in again.events]


def test_events_of_a_job_are_told_once_in_order_and_not_all_at_once() -> None:
    events = [Event(float(number), "round", f"m{number}") for number in range(30)]
    told: list[str] = []
    status: dict[str, Any] = {}
    for _ in range(3):
        decision = decide(seen(resource=resource(status=status), events=events), 100.0)
        told += [each.message for each in decision.events if each.reason == "Round"]
        status = dict(decision.status)
    assert told == [f"m{number}" for number in range(30)]


# -- a whole life ---------------------------------------------------------------------------------


@dataclass
class World:
    """A resource and its cluster. Each action takes several writes, and may end after any."""

    wanted: str = "d"
    generation: int = 1
    status: dict[str, Any] = field(default_factory=dict)
    held: bool = False
    deleted: bool = False
    gone: bool = False
    root: bool = False
    mark: ClusterMark | None = None
    job: str = ""
    pods: bool = False
    made: int = 0

    def seen(self) -> ResourceSeen:
        its = resource(
            generation=self.generation, is_deleted=self.deleted, is_held=self.held,
            status=self.status,
        )  # fmt: skip
        left = self.root or self.pods or bool(self.job) or self.mark is not None
        return ResourceSeen(
            its,
            digest=self.wanted,
            drift=("max",) if self.job not in ("", self.wanted) else (),
            root="ours" if self.root else "none",
            mark=self.mark,
            has_job=bool(self.job),
            anything_left=left,
            published=published() if self.pods else None,
        )

    def act(self, writes: int) -> None:
        """Look, decide, and make so many of the writes that follow."""
        decision = decide(self.seen(), 100.0)
        todo: list[dict[str, Any]] = [{"status": dict(decision.status)}]
        given = ClusterMark(UID, self.wanted, self.generation)
        match decision.step:
            case "hold":
                todo += [{"held": True}]
            case "create":
                todo += [{"root": True}, {"mark": None, "job": ""}, {"mark": ClusterMark(UID)}]
                todo += [{"job": self.wanted}, {"pods": True}, {"mark": given}]
            case "change":
                todo += [{"pods": True}, {"job": self.wanted}, {"mark": given}]
            case "take down":
                todo += [{"root": False}, {"pods": False}, {"job": ""}, {"mark": None}]
            case "let go":
                todo += [{"held": False, "gone": True}]
        for each in todo[:writes]:
            for name, value in each.items():
                setattr(self, name, value)
            assert not self.gone or not self.seen().anything_left, "something was left behind"
            assert self.held or not self.seen().anything_left, "made for what could just go"


@given(st.lists(st.integers(0, 8), max_size=12), st.integers(0, 12), st.lists(st.integers(0, 8)))
def test_killed_anywhere_it_ends_where_it_should(
    kills: list[int], edited: int, more: list[int]
) -> None:
    world = World()
    for number, writes in enumerate(kills):
        if number == edited:
            world.wanted, world.generation = "e", 2
        world.act(writes)
    for _ in range(6):
        world.act(9)
    assert (world.job, world.pods) == (world.wanted, True)
    assert world.mark == ClusterMark(UID, world.wanted, world.generation)
    assert decide(world.seen(), 200.0).step == "none"
    world.deleted = True
    for writes in more:
        if not world.gone:
            world.act(writes)
    while not world.gone:
        world.act(9)
    assert not world.seen().anything_left
