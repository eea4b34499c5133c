"""What an Indexed Job of the emulated cluster decides, compared with what Kubernetes documents."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.emulated_kubernetes.control.jobs import (
    FAILURES,
    FINALIZER,
    INDEX,
    JobDecision,
    decide,
    indexes,
    ranges,
)

NOW, TEXT = 1000.0, "2026-01-01T00:00:00Z"
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
IGNORE = {"rules": [{"action": "Ignore", "onPodConditions": [DISRUPTED]}]}


def job(size: int = 3, parallelism: int | None = None, **spec: Any) -> dict[str, Any]:
    sizes = {"completions": size, "parallelism": size if parallelism is None else parallelism}
    return {"spec": {**sizes, **spec}, "status": {}}


def pod(index: int, phase: str = "Running", code: int = 1, **more: Any) -> dict[str, Any]:
    """A pod of a Job; `conditions`, `failures` and whether it is `ending` may be said."""
    metadata: dict[str, Any] = {
        "name": f"j-{index}-{phase}",
        "annotations": {INDEX: str(index), FAILURES: str(more.get("failures", 0))},
        "finalizers": [FINALIZER],
    }
    if more.get("ending"):
        metadata["deletionTimestamp"] = TEXT
    state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else code}}
    ended = {"containerStatuses": [{"name": "node", "state": state}]}
    status = {"phase": phase, "conditions": more.get("conditions", ())}
    return {"metadata": metadata, "status": status | (ended if phase != "Running" else {})}


def created(done: JobDecision) -> list[int]:
    return [index for index, _ in done.create]


def conclusion(done: JobDecision) -> tuple[str, str]:
    last = done.status["conditions"][-1]
    return last["type"], last["reason"]


def test_a_new_job_gets_a_pod_for_each_index_that_may_run() -> None:
    assert created(decide(job(3), (), NOW, TEXT)) == [0, 1, 2]
    assert created(decide(job(3, 2), (), NOW, TEXT)) == [0, 1]
    assert created(decide(job(3, 0), (), NOW, TEXT)) == []
    assert created(decide(job(3, suspend=True), (), NOW, TEXT)) == []


def test_a_disrupted_pod_is_replaced_at_once_and_counts_as_no_failure() -> None:
    lost = pod(1, "Failed", 137, conditions=[DISRUPTED])
    found = job(2, podFailurePolicy=IGNORE, backoffLimit=0)
    done = decide(found, (pod(0), lost), NOW, TEXT)
    assert (created(done), done.status["failed"]) == ([1], 0)
    assert done.release == (lost["metadata"]["name"],), "it is counted, and may go"


def test_a_pod_that_ends_keeps_its_index_until_it_has_ended() -> None:
    done = decide(job(2), (pod(0), pod(1, ending=True)), NOW, TEXT)
    assert created(done) == []
    assert (done.status["active"], done.status["terminating"]) == (1, 1)


def test_a_failure_is_retried_ever_later_until_the_index_has_failed() -> None:
    found = job(2, backoffLimitPerIndex=1, maxFailedIndexes=1)
    once = decide(found, (pod(0), pod(1, "Failed")), NOW, TEXT)
    assert created(once) == [] and once.look_again > NOW
    later = decide(
        found | {"status": once.status}, (pod(0),), once.look_again, TEXT, once.look_again
    )
    assert created(later) == [1]
    again = decide(found, (pod(0), pod(1, "Failed", failures=1)), NOW, TEXT)
    assert (created(again), again.status["failedIndexes"]) == ([], "1")
    assert "conditions" not in again.status, "another index goes on"


def test_a_retried_pod_knows_the_failures_of_its_index() -> None:
    ended = pod(1, "Failed")
    ended["metadata"]["annotations"][FAILURES] = "2"
    ended["metadata"]["finalizers"] = []
    done = decide(job(2), (pod(0), ended), NOW, TEXT)
    assert done.create == ((1, 2),)


def test_exit_codes_end_the_job_or_the_index_as_the_policy_says() -> None:
    def policy(action: str, **asked: Any) -> dict[str, Any]:
        return {"rules": [{"action": action, "onExitCodes": asked}]}

    fatal = job(2, podFailurePolicy=policy("FailJob", operator="In", values=[1]))
    done = decide(fatal, (pod(0), pod(1, "Failed", 1)), NOW, TEXT)
    assert conclusion(done) == ("Failed", "PodFailurePolicy")
    assert done.delete == ("j-0-Running",), "the others end with it"
    other = decide(fatal, (pod(0), pod(1, "Failed", 2)), NOW, TEXT)
    assert "conditions" not in other.status
    index = job(
        2,
        podFailurePolicy=policy("FailIndex", operator="NotIn", values=[143]),
        backoffLimitPerIndex=5,
        maxFailedIndexes=2,
    )
    assert decide(index, (pod(0), pod(1, "Failed", 2)), NOW, TEXT).status["failedIndexes"] == "1"


def test_a_job_succeeds_when_all_indexes_have_or_its_policy_says_so() -> None:
    ended = tuple(pod(index, "Succeeded") for index in range(3))
    assert conclusion(decide(job(3), ended, NOW, TEXT)) == ("Complete", "CompletionsReached")
    one = job(3, successPolicy={"rules": [{"succeededCount": 1}]})
    done = decide(one, (pod(0), pod(1), ended[2]), NOW, TEXT)
    assert conclusion(done) == ("Complete", "SuccessPolicy")
    assert set(done.delete) == {"j-0-Running", "j-1-Running"}


def test_a_job_fails_with_its_backoff_limit() -> None:
    found = job(2, backoffLimit=1) | {"status": {"failed": 1}}
    done = decide(found, (pod(0), pod(1, "Failed")), NOW, TEXT)
    assert conclusion(done) == ("Failed", "BackoffLimitExceeded")


def test_a_job_that_is_over_starts_nothing_and_stays_as_it_is() -> None:
    over = decide(job(1), (pod(0, "Succeeded"),), NOW, TEXT)
    again = decide(job(1) | {"status": over.status}, (pod(0),), NOW, TEXT)
    assert (again.create, again.delete) == ((), ("j-0-Running",))
    assert again.status["conditions"] == over.status["conditions"]


def test_a_job_that_is_made_smaller_keeps_its_first_indexes() -> None:
    pods = tuple(pod(index) for index in range(4))
    assert set(decide(job(2), pods, NOW, TEXT).delete) == {"j-2-Running", "j-3-Running"}
    assert set(decide(job(4, 3), pods, NOW, TEXT).delete) == {"j-3-Running"}
    assert created(decide(job(6), pods, NOW, TEXT)) == [4, 5]


def test_who_ends_leaves_room_only_when_it_has_ended() -> None:
    """So a pod can be taken out on purpose: it is deleted, and then the Job is made smaller."""
    pods = (pod(0, ending=True), pod(1), pod(2))
    smaller = decide(job(3, 2), pods, NOW, TEXT)
    assert (smaller.create, smaller.delete) == ((), ())
    ended = (pod(0, "Failed", 143), pod(1), pod(2))
    assert decide(job(3, 2), ended, NOW, TEXT).create == ()


def test_the_pods_that_are_ready_stay() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    pods = (pod(0), pod(1, conditions=ready), pod(2, conditions=ready))
    assert decide(job(3, 2), pods, NOW, TEXT).delete == ("j-0-Running",)


@given(st.sets(st.integers(0, 60)))
def test_ranges_are_read_as_they_are_written(found: set[int]) -> None:
    assert indexes(ranges(found)) == found


@given(
    st.integers(1, 6),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["Running", "Succeeded", "Failed"]))),
)
def test_no_index_ever_has_two_pods_and_none_more_than_may_run(
    size: int, parallelism: int, ends: list[tuple[int, str]]
) -> None:
    """Pods come and end at random; each decision is carried out."""
    found, pods, now, retry_at = job(size, parallelism, backoffLimit=100), {}, NOW, 0.0
    for index, phase in [*ends, (0, "Running")]:
        now += 100.0
        if index in pods and phase != "Running":
            pods[index] = pod(index, phase)
        done = decide(found, tuple(pods.values()), now, TEXT, retry_at)
        retry_at, found["status"] = done.look_again, done.status
        assert not set(created(done)) & {
            each for each, its in pods.items() if its["status"]["phase"] == "Running"
        }
        pods = {each: its for each, its in pods.items() if its["status"]["phase"] == "Running"}
        pods |= {each: pod(each) for each in created(done)}
        pods = {
            each: its for each, its in pods.items() if its["metadata"]["name"] not in done.delete
        }
        assert len(pods) <= parallelism and all(each < size for each in pods)
        assert not pods.keys() & indexes(found["status"].get("completedIndexes", ""))
