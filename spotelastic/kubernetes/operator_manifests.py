"""Makes the objects that run the operator of one namespace (pure).

Must never happen: the operator may do more than it needs. It has a Role in one namespace, and none
in the cluster; its container is not root, writes nothing outside of its volumes, and is not reached
by anybody. Kubernetes lets it make a cluster's Role only if it has all rights of that itself.
"""

from typing import Any

from spotelastic.kubernetes import elastic_job
from spotelastic.kubernetes.cluster_manifests import control_rules
from spotelastic.kubernetes.pods import (
    CONTAINER_SECURITY,
    Manifest,
    deployment,
    granted,
    own_variables,
    pod_security,
    writable_mounts,
    writable_volumes,
)
from spotelastic.kubernetes.provider.kube_names import KubeNames

NAME = "spotelastic-operator"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": "spotelastic"}
ALIVE = "/var/spotelastic/alive"
"""The file that the operator writes while it looks after its resources."""
DEAD_AFTER = 180
"""Seconds without that after which the pod is started again."""
LEAVES_WITHIN = 30

_MAKES = ["create", "delete", "list", "patch"]
OWN: tuple[tuple[str, str, list[str]], ...] = (
    (elastic_job.GROUP, elastic_job.PLURAL, ["get", "patch", "watch"]),
    (elastic_job.GROUP, f"{elastic_job.PLURAL}/status", ["patch"]),
    ("", "events", ["create"]),
    ("", "configmaps", ["get", "update", *_MAKES]),
    ("", "pods", ["delete", "list"]),
    ("", "services", _MAKES),
    ("", "serviceaccounts", _MAKES),
    ("apps", "deployments", ["get", *_MAKES]),
    ("apps", "replicasets", ["create", "delete", "get", "list", "update"]),
    ("batch", "jobs", ["create", "delete", "get", "list"]),
    ("coordination.k8s.io", "leases", ["create", "delete", "get", "list", "update"]),
    ("networking.k8s.io", "networkpolicies", _MAKES),
    ("rbac.authorization.k8s.io", "roles", _MAKES),
    ("rbac.authorization.k8s.io", "rolebindings", _MAKES),
)
"""What the operator itself does: group, resource, verbs. Nothing else may be in its Role."""


def operator_manifests(image: str, namespace: str = "") -> list[Manifest]:
    """Return the objects, in the order in which they are to be created.

    `namespace`: the one whose ElasticJobs are looked after; empty: where they are applied.
    """
    made = [*granted(_named, operator_rules()), _network_policy(), _deployment(image)]
    if namespace:
        for each in made:
            each["metadata"]["namespace"] = namespace
        made[2]["subjects"][0]["namespace"] = namespace
    return made


def operator_rules() -> list[Manifest]:
    """Return the operator's rights: its own, and those that it hands on to control pods.

    The names of their objects are not known before, so that its own rights name none.
    """
    verbs: dict[tuple[str, str], set[str]] = {}
    for group, resource, own in OWN:
        verbs.setdefault((group, resource), set()).update(own)
    for rule in control_rules(KubeNames("any")):
        (group,), (resource,) = rule["apiGroups"], rule["resources"]
        verbs.setdefault((group, resource), set()).update(rule["verbs"])
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": sorted(each)}
        for (group, resource), each in verbs.items()
    ]


def _deployment(image: str) -> Manifest:
    age = f"$(($(date +%s) - $(stat -c %Y {ALIVE})))"
    container = {
        "name": "operator",
        "image": image,
        "command": ["spotelastic", "kube", "operator"],
        "env": [
            *own_variables(),
            {"name": "SPOTELASTIC_ALIVE", "value": ALIVE},
            # Of the control pods, too: no job chooses what has their rights.
            {"name": "SPOTELASTIC_OPERATOR_IMAGE", "value": image},
            {"name": "SPOTELASTIC_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "livenessProbe": {
            "exec": {"command": ["sh", "-c", f"test {age} -lt {DEAD_AFTER}"]},
            "initialDelaySeconds": DEAD_AFTER,
            "periodSeconds": 60,
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": writable_mounts(),
    }
    pod = {
        **pod_security(),
        "automountServiceAccountToken": True,
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": LEAVES_WITHIN,
        "containers": [container],
        "volumes": writable_volumes("256Mi"),
    }
    return deployment(_named("apps/v1", "Deployment"), LABELS, pod)


def _network_policy() -> Manifest:
    """Return the policy by which nobody reaches the operator. It listens nowhere."""
    made = _named("networking.k8s.io/v1", "NetworkPolicy")
    made["spec"] = {
        "podSelector": {"matchLabels": LABELS},
        "policyTypes": ["Ingress"],
        "ingress": [],
    }
    return made


def _named(version: str, kind: str) -> Manifest:
    metadata: dict[str, Any] = {"name": NAME, "labels": dict(LABELS)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
