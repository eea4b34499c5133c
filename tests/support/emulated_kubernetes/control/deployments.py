"""Decides what a Deployment does next (pure): how many pods of which template it has.

Kubernetes puts a ReplicaSet between a Deployment and its pods; here it has them itself. A new
template replaces all pods at once, as the strategy `Recreate` does.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class DeploymentDecision:
    """What a Deployment does now."""

    create: int = 0
    delete: tuple[str, ...] = ()
    status: Object = field(default_factory=dict)


def template_hash(deployment: Object) -> str:
    """Return the label by which pods of the present template are told from earlier ones."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def decide(deployment: Object, pods: Sequence[Object]) -> DeploymentDecision:
    """Return what a Deployment with these pods does."""
    wanted, label = int(deployment["spec"]["replicas"]), template_hash(deployment)
    living = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    staying = [pod for pod in living if "deletionTimestamp" not in pod["metadata"]]
    current = [pod for pod in staying if pod["metadata"]["labels"].get(HASH) == label]
    surplus = [pod for pod in staying if pod not in current] + current[wanted:]
    is_clear = len(living) == len(current)
    ready = sum(_is_ready(pod) for pod in current)
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": len(staying),
        "updatedReplicas": len(current),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    missing = max(0, wanted - len(current)) if is_clear else 0
    return DeploymentDecision(missing, tuple(pod["metadata"]["name"] for pod in surplus), status)


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
