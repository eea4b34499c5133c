"""The operator's manifests and the definition of ElasticJob, as objects."""

from typing import Any

import yaml

from spotelastic.client.operator import definition as chart

NAME = "spotelastic-operator"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": "spotelastic"}
_MAKES = ["create", "delete", "list", "patch"]
OWN: tuple[tuple[str, str, list[str]], ...] = (
    ("spotelastic.internal", "elasticjobs", ["get", "list", "patch"]),
    ("spotelastic.internal", "elasticjobs/status", ["patch"]),
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
"""What the operator itself does: group, resource, verbs. Else only a control pod's rights may be in
its Role."""
KUEUE: tuple[tuple[str, str, list[str]], ...] = (
    ("kueue.x-k8s.io", "workloads", ["create", "delete", "get", "patch"]),
    ("kueue.x-k8s.io", "workloads/status", ["patch"]),
)
"""What it does for jobs that have a queue."""


def node_rights(namespace: str) -> list[dict[str, Any]]:
    """The objects by which an administrator lets the operator list nodes, as the guide says."""
    name, api = "spotelastic-node-notices", "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    role: dict[str, Any] = {"kind": "ClusterRole", "rules": [rule]}
    binding = {
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
        "subjects": [subject],
    }
    metadata = {"name": name}
    return [{"apiVersion": f"{api}/v1", "metadata": metadata, **it} for it in (role, binding)]


def definition() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(chart.definition())
    return made


def schema() -> dict[str, Any]:
    made: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return made


def operator_manifests(image: str, namespace: str = "") -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(chart.operator_manifests(image, namespace)))


def operator_rules() -> list[dict[str, Any]]:
    (role,) = (each for each in operator_manifests("i") if each["kind"] == "Role")
    rules: list[dict[str, Any]] = role["rules"]
    return rules
