"""Decides what an Indexed Job does next (pure): pods to create and to delete, and its status.

As Kubernetes 1.35, with `podReplacementPolicy: Failed`. An index has one pod at a time. A pod that
is ending takes up room until it has ended; then it is counted once, and loses its finalizer. Heeded
are `podFailurePolicy`, `backoffLimit`, `backoffLimitPerIndex`, `maxFailedIndexes`, `successPolicy`,
`suspend`, `activeDeadlineSeconds`, `ttlSecondsAfterFinished`, and elastic sizes (`parallelism` with
`completions`). A failure is retried after a second here, and twice as long each time, where
Kubernetes begins with ten.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Object = dict[str, Any]

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
FIRST_BACKOFF = 1.0
MOST_BACKOFF = 60.0
BACKOFF_LIMIT = 6


@dataclass(frozen=True, slots=True)
class JobDecision:
    """What a Job does now."""

    create: tuple[tuple[int, int], ...] = ()
    """Indexes that get a pod, each with the failures of the index so far."""
    delete: tuple[str, ...] = ()
    """Names of pods to delete."""
    release: tuple[str, ...] = ()
    """Names of pods that are counted, and lose their finalizer."""
    status: Object = field(default_factory=dict)
    look_again: float = 0.0
    """When to create pods again after a failure, in seconds since the epoch; 0: at any change."""
    over_at: float = 0.0
    """When its deadline passes; 0: it has none."""


@dataclass(slots=True)
class _JobCount:
    """The pods and indexes of a Job, as they are counted."""

    succeeded: set[int]
    failed: set[int]
    failed_pods: int
    over: str = ""
    """Why the whole Job fails."""
    message: str = ""


def decide(
    job: Object, pods: Sequence[Object], now: float, text: str, retry_at: float = 0.0
) -> JobDecision:
    """Return what a Job does. `text` is `now` as Kubernetes writes it.

    `retry_at`: when the next pod may be created after a failure, as decided before.
    """
    spec, status = job["spec"], copy.deepcopy(job.get("status") or {})
    if _is_over(status):
        return _finish(pods, status)
    status.setdefault("startTime", text)
    counted = _JobCount(
        indexes(status.get("completedIndexes", "")),
        indexes(status.get("failedIndexes", "")),
        int(status.get("failed", 0)),
    )
    ended = [pod for pod in pods if has_ended(pod) and _is_tracked(pod)]
    retries = _count(spec, counted, ended)
    living = [pod for pod in pods if not has_ended(pod)]
    active = [pod for pod in living if "deletionTimestamp" not in pod["metadata"]]
    status |= {
        "succeeded": len(counted.succeeded),
        "failed": counted.failed_pods,
        "completedIndexes": ranges(counted.succeeded),
    }
    if "backoffLimitPerIndex" in spec:
        status["failedIndexes"] = ranges(counted.failed)
    released = tuple(_name(pod) for pod in pods if has_ended(pod) and _is_tracked(pod))
    over_at = _deadline(spec, status)
    if over_at and now >= over_at:
        told = "Job was active longer than specified deadline"
        counted.over, counted.message = "DeadlineExceeded", told
    if verdict := _verdict(spec, counted):
        _conclude(status, verdict, text)
        status |= {"active": 0, "ready": 0, "terminating": len(living)}
        return JobDecision(delete=tuple(map(_name, active)), release=released, status=status)
    kept = _kept(spec, counted, active)
    surplus = tuple(_name(pod) for pod in active if pod not in kept)
    room = _most(spec) - len(kept) - (len(living) - len(active))
    busy = {index_of(pod) for pod in living}
    missing = [index for index in _open(spec, counted) if index not in busy][: max(0, room)]
    delay = retry_at if retry_at > now else 0.0
    if retries and missing:
        failures = status["failed"]
        delay = now + min(MOST_BACKOFF, FIRST_BACKOFF * 2 ** min(failures - 1, 10))
    waits = bool(delay and missing)
    before: dict[int, int] = defaultdict(int, retries)
    for pod in filter(has_ended, pods):
        before[index_of(pod)] = max(before[index_of(pod)], _failures(pod))
    create = () if waits else tuple((index, before[index]) for index in missing)
    status |= {
        "active": len(active) + len(create),
        "ready": sum(_is_ready(pod) for pod in active),
        "terminating": len(living) - len(active),
    }
    return JobDecision(create, surplus, released, status, delay if waits else 0.0, over_at)


def gone_at(spec: Object, status: Object) -> float:
    """Return when a Job that is over is deleted; 0: not by itself."""
    ended = [
        each["lastTransitionTime"]
        for each in status.get("conditions", ())
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    ]
    if not ended or "ttlSecondsAfterFinished" not in spec:
        return 0.0
    return _seconds(ended[0]) + float(spec["ttlSecondsAfterFinished"])


def _deadline(spec: Object, status: Object) -> float:
    """Return when a Job fails because it has taken too long; 0: never."""
    if "activeDeadlineSeconds" not in spec:
        return 0.0
    return _seconds(status["startTime"]) + float(spec["activeDeadlineSeconds"])


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def indexes(text: str) -> set[int]:
    """Return the indexes of a text such as `0,2-4`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def ranges(found: Iterable[int]) -> str:
    """Return indexes as such a text."""
    parts: list[list[int]] = []
    for index in sorted(found):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def index_of(pod: Object) -> int:
    """Return the index that a pod of an Indexed Job has."""
    return int(pod["metadata"]["annotations"][INDEX])


def has_ended(pod: Object) -> bool:
    """Whether none of its containers runs, or will run again."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


# -- counting -------------------------------------------------------------------------------------


def _count(spec: Object, counted: _JobCount, ended: Sequence[Object]) -> dict[int, int]:
    """Count pods that have ended. Returns the failures of each index whose pod is retried."""
    retried: dict[int, int] = {}
    limit: int | None = spec.get("backoffLimitPerIndex")
    for pod in ended:
        index, failures = index_of(pod), _failures(pod)
        if pod["status"]["phase"] == "Succeeded":
            counted.succeeded.add(index)
            continue
        match _action(spec, pod):
            case "Ignore":
                continue
            case "FailJob":
                counted.failed_pods += 1
                counted.over, counted.message = "PodFailurePolicy", f"pod {_name(pod)} failed"
            case "FailIndex":
                counted.failed_pods += 1
                counted.failed.add(index)
            case _:
                counted.failed_pods += 1
                retried[index] = failures + 1
                if limit is not None and failures + 1 > limit:
                    counted.failed.add(index)
    return retried


def _action(spec: Object, pod: Object) -> str:
    """Return what the failure policy says of a failed pod."""
    for rule in (spec.get("podFailurePolicy") or {}).get("rules", ()):
        if "onPodConditions" in rule:
            has = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
            if any(
                has.get(each["type"]) == each.get("status", "True")
                for each in rule["onPodConditions"]
            ):
                return str(rule["action"])
        elif "onExitCodes" in rule and _exits(rule["onExitCodes"], pod):
            return str(rule["action"])
    return "Count"


def _exits(asked: Mapping[str, Any], pod: Object) -> bool:
    codes = [
        each["state"]["terminated"]["exitCode"]
        for each in pod["status"].get("containerStatuses", ())
        if "terminated" in each.get("state", {})
        and asked.get("containerName") in (None, each["name"])
    ]
    values = asked["values"]
    if asked["operator"] == "In":
        return any(code in values for code in codes)
    return any(code and code not in values for code in codes)


def _verdict(spec: Object, counted: _JobCount) -> tuple[str, str, str] | None:
    """Return the condition, reason and message with which the Job ends; None while it goes on."""
    total: int = spec["completions"]
    most_failed: int = spec.get("maxFailedIndexes", total)
    if counted.over:
        return "Failed", counted.over, counted.message
    for rule in (spec.get("successPolicy") or {}).get("rules", ()):
        among = counted.succeeded
        if "succeededIndexes" in rule:
            asked = indexes(rule["succeededIndexes"])
            among = among & asked
            if len(among) >= rule.get("succeededCount", len(asked)):
                return "Complete", "SuccessPolicy", "Matched rules of successPolicy"
        elif len(among) >= rule["succeededCount"]:
            return "Complete", "SuccessPolicy", "Matched rules of successPolicy"
    if "backoffLimitPerIndex" not in spec:
        if counted.failed_pods > spec.get("backoffLimit", BACKOFF_LIMIT):
            told = "Job has reached the specified backoff limit"
            return "Failed", "BackoffLimitExceeded", told
    elif len(counted.failed) > most_failed:
        told = "Job has exceeded the specified maximal number of failed indexes"
        return "Failed", "MaxFailedIndexesExceeded", told
    within = set(range(total))
    if counted.succeeded >= within:
        return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
    if counted.succeeded | counted.failed >= within:
        return "Failed", "FailedIndexes", "Job has failed indexes"
    return None


def _most(spec: Object) -> int:
    """Return how many pods may run at once."""
    return 0 if spec.get("suspend") else int(spec.get("parallelism", 1))


def _open(spec: Object, counted: _JobCount) -> list[int]:
    """Return the indexes that have neither succeeded nor failed."""
    over = counted.succeeded | counted.failed
    return [index for index in range(spec["completions"]) if index not in over]


def _kept(spec: Object, counted: _JobCount, active: Sequence[Object]) -> list[Object]:
    """Return the pods that stay: of those with an open index the ready ones, then the oldest."""
    open_ = set(_open(spec, counted))
    fit = [pod for pod in active if index_of(pod) in open_]
    fit.sort(key=lambda pod: (not _is_ready(pod), _created(pod), index_of(pod)))
    return fit[: _most(spec)]


def _conclude(status: Object, verdict: tuple[str, str, str], text: str) -> None:
    type_, reason, message = verdict
    condition = {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastProbeTime": text,
        "lastTransitionTime": text,
    }
    early = "SuccessCriteriaMet" if type_ == "Complete" else "FailureTarget"
    status["conditions"] = [
        *status.get("conditions", ()),
        {**condition, "type": early},
        condition,
    ]
    if type_ == "Complete":
        status["completionTime"] = text


def _finish(pods: Sequence[Object], status: Object) -> JobDecision:
    """Do what is left to do for a Job that is over."""
    living = [pod for pod in pods if not has_ended(pod)]
    status["terminating"] = len(living)
    ending = (pod for pod in living if "deletionTimestamp" not in pod["metadata"])
    released = (_name(pod) for pod in pods if has_ended(pod) and _is_tracked(pod))
    return JobDecision(delete=tuple(map(_name, ending)), release=tuple(released), status=status)


def _is_over(status: Object) -> bool:
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in status.get("conditions", ())
    )


def _is_tracked(pod: Object) -> bool:
    return FINALIZER in pod["metadata"].get("finalizers", ())


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _failures(pod: Object) -> int:
    return int(pod["metadata"]["annotations"].get(FAILURES, 0))


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])
