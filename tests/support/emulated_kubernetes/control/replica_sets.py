"""Decides what a ReplicaSet does next (pure): pods to create, and which go where it has too many.

As Kubernetes 1.35. A pod that is ending counts no more, so that its replacement does not wait for
it. Of too many pods those go first that have no node, do not run, or are not ready; then those with
a lower deletion cost; then the newest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, slots=True)
class ReplicaDecision:
    """What a ReplicaSet does now."""

    create: int = 0
    delete: tuple[str, ...] = ()
    status: Object = field(default_factory=dict)


def decide(group: Object, pods: Sequence[Object]) -> ReplicaDecision:
    """Return what a ReplicaSet with these pods does."""
    wanted = int(group["spec"]["replicas"])
    staying = [pod for pod in pods if _counts(pod)]
    staying.sort(key=_rank)
    surplus = staying[: max(0, len(staying) - wanted)]
    ready = sum(_is_ready(pod) for pod in staying)
    status = {
        "observedGeneration": group["metadata"]["generation"],
        "replicas": len(staying),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    names = tuple(str(pod["metadata"]["name"]) for pod in surplus)
    return ReplicaDecision(max(0, wanted - len(staying)), names, status)


def _counts(pod: Object) -> bool:
    ended = pod["status"].get("phase") in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in pod["metadata"]


def _rank(pod: Object) -> tuple[bool, bool, bool, int, list[int]]:
    """Return a value that is lower for a pod that goes sooner."""
    cost = int(pod["metadata"].get("annotations", {}).get(COST, 0))
    age = [-ord(letter) for letter in pod["metadata"].get("creationTimestamp", "")]
    runs = pod["status"].get("phase") == "Running"
    return bool(pod["spec"].get("nodeName")), runs, _is_ready(pod), cost, age


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
