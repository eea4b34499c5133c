"""What the operator decides for an ElasticJob that has a queue of Kueue."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.operator.kueue import ASKED, QueuedJob
from spotelastic.client.operator.operator_decision import ResourceSeen, decide
from spotelastic.client.operator.resource import JobResource
from spotelastic.client.operator.told import SpecRefusal
from spotelastic.model.progress import Status

UID = "u-1"
WANTED = {"metadata": {"annotations": {ASKED: "a 2-4"}}}
WORDS = ("QuotaReserved", "Admitted", "Evicted", "Finished", "PodsReady")


def resource(**given: Any) -> JobResource:
    values: dict[str, Any] = {"name": "gpt", "uid": UID, "generation": 1, "queue": "team"}
    values |= {"is_deleted": False, "is_held": True, "spec": {}, "status": {}}
    return JobResource(**values | given)


def workload(*holds: str, asked: str = "a 2-4", count: int = 4) -> dict[str, Any]:
    """A Workload of which these conditions hold."""
    conditions = [
        {"type": word, "status": str(word in holds), "reason": "Preempted", "message": f"{word}."}
        | {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        for word in WORDS
    ]
    sets = [{"name": "control", "count": 1}, {"name": "workers", "count": count}]
    admission = {"podSetAssignments": sets} if "QuotaReserved" in holds else None
    return {
        "metadata": {"annotations": {ASKED: asked}, "resourceVersion": "7"},
        "spec": {"active": True},
        "status": {"conditions": conditions, "admission": admission},
    }


def queued(*holds: str, **given: Any) -> QueuedJob:
    return QueuedJob(workload(*holds, **given), WANTED)


ADMITTED = ("QuotaReserved", "Admitted")


def published(state: str) -> Status:
    return Status("gpt", state, 5.0, step=7, reason=f"it is {state}")


def seen(queue: QueuedJob, **given: Any) -> ResourceSeen:
    values: dict[str, Any] = {"resource": resource(), "digest": "d", "queue": queue}
    running = {"root": "ours", "has_job": True, "mark": ClusterMark(UID, "d", 1)}
    return ResourceSeen(**{**values, **running, "published": published("running"), **given})


def stopped(queue: QueuedJob, **given: Any) -> ResourceSeen:
    return seen(queue, root="none", **given)


workloads = st.none() | st.builds(
    lambda holds, asked, count: workload(*holds, asked=asked, count=count),
    st.lists(st.sampled_from(WORDS), unique=True),
    st.sampled_from(["a 2-4", "a 2-8", "b 2-4"]),
    st.integers(1, 4),
)
anything = st.builds(
    ResourceSeen,
    resource=st.builds(resource, is_deleted=st.booleans(), is_held=st.booleans()),
    refusal=st.none() | st.just(SpecRefusal("Invalid", "spec.min 9")),
    digest=st.sampled_from(["d", "e"]),
    root=st.sampled_from(["none", "ours", "other", "ending"]),
    mark=st.none() | st.just(ClusterMark(UID, "d", 1)),
    has_job=st.booleans(),
    has_pods=st.booleans(),
    published=st.none() | st.builds(published, st.sampled_from(["running", "succeeded", "failed"])),
    queue=st.builds(QueuedJob, workloads, st.none() | st.just(WANTED)),
)


@given(anything)
def test_what_a_queue_must_never_see_is_never_decided(it: ResourceSeen) -> None:
    assert it.queue is not None
    decision = decide(it, 100.0)
    step, queue = decision.step, it.queue
    if step in ("create", "change"):
        assert queue.is_admitted and queue.holds("Admitted") and not queue.holds("Evicted")
        assert queue.wanted is None or queue.most >= 2, "less than its minimum"
    if step in ("ask", "release", "suspend", "ready", "finish"):
        assert not it.resource.is_deleted and it.resource.is_held
        assert it.root != "other", "another's cluster"
    if step in ("ask", "release"):
        assert it.is_stopped, "its room is still used"
    if step == "suspend":
        assert not queue.is_admitted and not it.has_ended
    if step == "finish":
        assert it.has_ended
    assert decide(it, 200.0).events == decision.events


@pytest.mark.parametrize(
    ("it", "step"),
    [
        (stopped(QueuedJob(None, WANTED)), "ask"),
        (stopped(queued()), "none"),
        (stopped(queued(asked="a 1-4")), "ask"),
        (stopped(queued("QuotaReserved")), "none"),
        (stopped(queued(*ADMITTED)), "create"),
        (seen(queued(*ADMITTED)), "ready"),
        (seen(queued(*ADMITTED, "PodsReady")), "none"),
        (seen(queued(*ADMITTED, "PodsReady", count=2)), "none"),
        (seen(queued(*ADMITTED, "PodsReady", asked="a 1-8")), "none"),
        (seen(queued(*ADMITTED, "PodsReady", count=1)), "suspend"),
        (seen(queued(*ADMITTED, "PodsReady", asked="b 2-4")), "suspend"),
        (stopped(queued(*ADMITTED, asked="b 2-4")), "ask"),
        (seen(queued(*ADMITTED, "Evicted")), "suspend"),
        (seen(QueuedJob(None, WANTED)), "suspend"),
        (seen(queued(*ADMITTED, "Evicted"), refusal=SpecRefusal("Invalid", "no")), "suspend"),
        (stopped(queued(*ADMITTED, "Evicted"), has_pods=True), "suspend"),
        (stopped(queued(*ADMITTED, "Evicted")), "release"),
        (stopped(queued("Evicted")), "none"),
        (seen(queued(*ADMITTED), published=published("succeeded")), "finish"),
        (seen(queued("Finished"), published=published("succeeded")), "none"),
        (seen(queued("Finished")), "suspend"),
        (stopped(queued("Finished")), "ask"),
    ],
)
def test_the_next_step_follows_from_the_workload(it: ResourceSeen, step: str) -> None:
    assert decide(it, 100.0).step == step


def test_a_job_that_waits_says_why_in_the_words_of_kueue() -> None:
    status = decide(stopped(queued(), published=None), 100.0).status
    assert (status["state"], status["reason"]) == ("queued", "Queued")
    assert status["message"] == "QuotaReserved."
    evicted = decide(seen(queued(*ADMITTED, "Evicted")), 100.0)
    assert (evicted.status["state"], evicted.status["message"]) == ("suspended", "Evicted.")
    assert (evicted.status["step"], evicted.status["nodes"]) == (7, 0)
    assert [each.reason for each in evicted.events] == ["Accepted", "Suspended"]


def test_each_suspension_and_each_beginning_is_told() -> None:
    first = queued(*ADMITTED, "Evicted")
    assert first.found is not None
    again = workload(*ADMITTED, "Evicted")
    again["status"]["conditions"][2]["lastTransitionTime"] = "2026-01-02T00:00:00Z"
    for it in (seen(first), stopped(queued(*ADMITTED))):
        later = replace(it, queue=QueuedJob(again | {"spec": {}}, WANTED))
        names = {each.name for each in decide(it, 1.0).events if each.reason != "Accepted"}
        assert names and not names & {each.name for each in decide(later, 1.0).events}


@pytest.mark.parametrize(("reason", "requeued"), [("Preempted", "True"), ("Deactivated", "False")])
def test_room_is_given_back_as_kueue_expects_it(reason: str, requeued: str) -> None:
    found = workload(*ADMITTED, "Evicted")
    found["status"]["conditions"][2]["reason"] = reason
    patch = QueuedJob(found).told("release", "suspended", "", 86400.0)
    assert patch["metadata"] == {"resourceVersion": "7"} and patch["status"]["admission"] is None
    told = {each["type"]: each for each in patch["status"]["conditions"]}
    assert {name: each["status"] for name, each in told.items()} == {
        "QuotaReserved": "False",
        "Admitted": "False",
        "Evicted": "True",
        "Finished": "False",
        "PodsReady": "False",
        "Requeued": requeued,
    }
    assert told["Evicted"]["lastTransitionTime"].startswith("2026")
    assert told["Admitted"]["lastTransitionTime"].startswith("1970-01-02")
