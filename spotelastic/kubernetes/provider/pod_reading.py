"""Reads what Kubernetes says of a cluster's pods as instances and members of groups (pure)."""

from collections.abc import Iterable
from datetime import datetime

from spotelastic.cloud.events import CloudEvent, GroupActivity, SpotWarning, StateChange
from spotelastic.cloud.model import (
    DRAINING,
    IN_SERVICE,
    GroupMember,
    Instance,
    InstanceState,
    WorkerGroup,
)
from spotelastic.kubernetes.pods import ZONE, Manifest
from spotelastic.kubernetes.provider.kube_names import GROUP

ANYWHERE = "cluster"
"""The one place in which groups launch: which machine a pod gets is the scheduler's matter."""
POD = "pod"
"""The instance type of a pod; a pod may not read its machine's."""
ENDED = frozenset({"Succeeded", "Failed"})
DISRUPTED = "DisruptionTarget"


def instance(pod: Manifest, spot: str) -> Instance:
    """Return a pod as an instance; `spot` is the name of the group of spot instances."""
    metadata, status = pod["metadata"], pod.get("status", {})
    labels = metadata.get("labels", {})
    return Instance(
        id=metadata["name"],
        role="worker",
        state=_state(pod),
        type=POD,
        zone=labels.get(ZONE, ""),
        address=status.get("podIP", ""),
        spot=labels.get(GROUP) == spot,
        launched_at=_placed_at(pod),
        reason=_reason(pod),
    )


def is_placed(pod: Manifest) -> bool:
    """Whether a pod has a machine. One that waits for a machine is not launched yet."""
    return bool(pod["spec"].get("nodeName"))


def is_ending(pod: Manifest) -> bool:
    """Whether a pod was told to end."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def worker_group(name: str, desired: int, pods: Iterable[Manifest]) -> WorkerGroup:
    """Return a group. Its members are its pods that have a machine, and have not ended."""
    members = tuple(
        GroupMember(pod["metadata"]["name"], _member_state(pod))
        for pod in pods
        if pod["metadata"].get("labels", {}).get(GROUP) == name
        and is_placed(pod)
        and pod.get("status", {}).get("phase") not in ENDED
    )
    return WorkerGroup(name, desired, members, (ANYWHERE,), (ANYWHERE,))


def hindrance(parts: Iterable[Manifest | None]) -> str:
    """Return why pods of ReplicaSets or Deployments are refused, as by a quota; empty: none is."""
    found = (holding(part or {}, "ReplicaFailure") for part in parts)
    return next((str(each.get("message") or each["reason"]) for each in found if each), "")


def holding(found: Manifest, type_: str) -> Manifest:
    """Return the condition of that type that holds for an object; empty: none does."""
    known = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in known if (each["type"], each["status"]) == (type_, "True")), {})


def news(
    before: Iterable[Manifest] | None, after: Iterable[Manifest], now: float
) -> tuple[CloudEvent, ...]:
    """Return what has happened to pods between two looks.

    Before the first look (None), pods may have got their machines at any time: whoever looked then
    has told of it.
    """
    was = {str(pod["metadata"]["uid"]): pod for pod in before or () if is_placed(pod)}
    is_ = {str(pod["metadata"]["uid"]): pod for pod in after if is_placed(pod)}
    found: list[CloudEvent] = []
    for uid, pod in was.items():
        gone = uid not in is_ or _state(is_[uid]) == "terminated"
        if gone and _state(pod) != "terminated":
            found.append(StateChange(f"{uid}-gone", now, pod["metadata"]["name"], "terminated"))
            found.append(_activity(pod, "terminate", now))
    for uid, pod in is_.items():
        if before is not None and uid not in was and _state(pod) != "terminated":
            found.append(_activity(pod, "launch", now))
        if _is_disrupted(pod) and not (uid in was and _is_disrupted(was[uid])):
            found.append(_warning(pod, now))
    return tuple(found)


def console(pod: Manifest | None, lines: Iterable[str]) -> str:
    """Return why a pod does not run, as Kubernetes tells it, after what it has written."""
    status = {} if pod is None else pod.get("status", {})
    told = [
        f"{each['name']}: {state['reason']}: {state.get('message', '')}"
        for each in status.get("containerStatuses", ())
        for state in each.get("state", {}).values()
        if state and state.get("reason")
    ]
    return "\n".join([*lines, *told])


def seconds(text: str | datetime) -> float:
    """Return a time of Kubernetes in seconds since the epoch."""
    return (datetime.fromisoformat(text) if isinstance(text, str) else text).timestamp()


def _activity(pod: Manifest, name: str, now: float) -> GroupActivity:
    """Return that a pod has got its machine, or is gone, as its group's doing."""
    metadata = pod["metadata"]
    return GroupActivity(
        id=f"{metadata['uid']}-{name}",
        at=now,
        instance=metadata["name"],
        group=metadata.get("labels", {}).get(GROUP, ""),
        name=name,
        succeeded=True,
        zone=ANYWHERE,
    )


def _state(pod: Manifest) -> InstanceState:
    phase = pod.get("status", {}).get("phase")
    if phase in ENDED:
        return "terminated"
    return "running" if phase == "Running" else "pending"


def _member_state(pod: Manifest) -> str:
    if is_ending(pod):
        return DRAINING
    return IN_SERVICE if _state(pod) == "running" else "Pending"


def _is_disrupted(pod: Manifest) -> bool:
    return is_ending(pod) and bool(holding(pod, DISRUPTED))


def _warning(pod: Manifest, now: float) -> SpotWarning:
    """Return the warning of a pod that is evicted: its deletion says when it is killed."""
    metadata = pod["metadata"]
    grace = float(metadata.get("deletionGracePeriodSeconds") or 0.0)
    ahead = max(0.0, min(grace, seconds(metadata["deletionTimestamp"]) - now))
    return SpotWarning(f"{metadata['uid']}-evicted", now, metadata["name"], ahead, "evict")


def _placed_at(pod: Manifest) -> float:
    """Return since when a pod has a machine."""
    placed = holding(pod, "PodScheduled").get("lastTransitionTime")
    return seconds(placed or pod["metadata"]["creationTimestamp"])


def _reason(pod: Manifest) -> str:
    return str(pod.get("status", {}).get("reason") or "")
