"""Makes the objects that keep a cluster's pods running (pure).

A ReplicaSet is a worker group: it keeps a number of pods, replaces one that goes without waiting
for its end, and a changed template concerns new pods alone. Both groups belong to a Job without
pods, the switch: its deadline is put off again and again by the controller. If nobody does so any
more, the Job fails, Kubernetes deletes it, and with it the groups: machines are given back.
"""

import copy
import math

from spotelastic.kubernetes.pods import CONTAINER_SECURITY, Manifest, pod_security
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.kubernetes.provider.kube_names import GROUP, KubeNames

COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of a pod: of too many pods, those with the lowest cost go first."""
GOES_FIRST = "-1000"
NOTHING = {part: {"cpu": "10m", "memory": "16Mi"} for part in ("requests", "limits")}
"""Requests and limits of the pod that the switch never has: policies ask for them all the same."""


def owner(manifest: Manifest) -> Manifest:
    """Return the reference to an object that another one belongs to."""
    names = {key: manifest["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], **names}


def group(its: KubeNames, name: str, template: Manifest, switch: Manifest) -> Manifest:
    """Return the ReplicaSet of a worker group, whose pods are made by the template.

    It has none until the controller wants some.
    """
    labels = {**its.labels("worker"), GROUP: name}
    made = copy.deepcopy(template)
    metadata = made.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "labels": its.labels("group"),
            "ownerReferences": [owner(switch)],
        },
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": made},
    }


def switch(its: KubeNames, image: str, root: Manifest, within: float) -> Manifest:
    """Return the Job that ends after so many seconds, with the groups. It never has a pod."""
    container = {
        "name": "none",
        "image": image,
        "command": ["true"],
        "resources": NOTHING,
        "securityContext": CONTAINER_SECURITY,
    }
    pod = {**pod_security(), "restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": its.switch,
            "labels": its.labels("switch"),
            "ownerReferences": [owner(root)],
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 0,
            "activeDeadlineSeconds": max(1, math.ceil(within)),
            "ttlSecondsAfterFinished": 0,
            "template": {"metadata": {"labels": its.labels("switch")}, "spec": pod},
        },
    }


def is_over(switch: Manifest) -> bool:
    """Whether the switch has ended, or is being deleted: its groups go."""
    return bool(pod_reading.holding(switch, "Failed")) or pod_reading.is_ending(switch)
