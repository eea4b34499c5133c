"""Makes the objects of a cluster that `up --kube` creates (pure).

    ConfigMap NAME-cluster     owns all others: deleted, it takes them along
    Deployment NAME-control    the control pod: etcd and the controller, of spotelastic's own image
    Service NAME-control       its name
    ServiceAccount, Role and RoleBinding NAME-control
                               what the controller may do, in this namespace alone
    NetworkPolicies            only the cluster's pods reach each other
    Job and ReplicaSets        the groups of workers (`provider/pod_groups.py`)

Must never happen: a worker's pod has a token of the cluster that nobody asked for, the control pod
may make pods, or a manifest has the value of a secret.
"""

import base64
from collections.abc import Sequence
from typing import Any

from spotelastic.kubernetes import pod_files
from spotelastic.kubernetes.job_as_pods import PodJob
from spotelastic.kubernetes.pod_template import merged
from spotelastic.kubernetes.pods import (
    CONTAINER_SECURITY,
    ZONE,
    Manifest,
    filled_in,
    own_variables,
    pod,
    pod_security,
    soon,
    writable_mounts,
    writable_volumes,
)
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.kubernetes.provider.pod_groups import owner
from spotelastic.model.job import JobSpec

CLIENT_PORT = 2379
LEAVES_WITHIN = 30
"""Grace of the control pod, in seconds: it saves etcd before it ends."""
BOOT = ("spotelastic", "boot")


def endpoint(its: KubeNames) -> str:
    """Return where the cluster's pods reach its etcd."""
    return f"{its.control}:{CLIENT_PORT}"


def root(its: KubeNames, belongs_to: Manifest | None = None) -> Manifest:
    """Return the object that owns all others. `belongs_to` refers to what it belongs to itself."""
    made = _named(its, its.root, "root", "v1", "ConfigMap", None)
    if belongs_to is not None:
        made["metadata"]["ownerReferences"] = [belongs_to]
    return made


def control_plane(its: KubeNames, job: PodJob, image: str, root: Manifest) -> list[Manifest]:
    """Return the objects of the control pod, in the order in which they are to be created.

    `image` is the control pod's, which is not the job's: nothing that a job brings has its rights.
    """
    return [
        *_account(its, root),
        _service(its, root),
        *_network_policies(its, job, root),
        _deployment(its, image, root),
    ]


def _account(its: KubeNames, root: Manifest) -> list[Manifest]:
    """Return the control pod's service account, and the Role and RoleBinding of its rights."""
    group = "rbac.authorization.k8s.io"
    account = _control(its, root, "v1", "ServiceAccount")
    role = _control(its, root, f"{group}/v1", "Role")
    binding = _control(its, root, f"{group}/v1", "RoleBinding")
    account["automountServiceAccountToken"] = False
    role["rules"] = control_rules(its)
    binding["roleRef"] = {"apiGroup": group, "kind": "Role", "name": its.control}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": its.control}]
    return [account, role, binding]


def secret(its: KubeNames, values: dict[str, str], root: Manifest) -> Manifest:
    """Return the Secret with the values of --secret. It is never printed or logged."""
    made = _named(its, its.secrets, "secret", "v1", "Secret", root)
    return {**made, "type": "Opaque", "stringData": values}


def code(its: KubeNames, number: int, part: bytes, root: Manifest) -> Manifest:
    """Return the ConfigMap with one part of the code."""
    name = pod_files.part_name(its.cluster, number)
    made = _named(its, name, "code", "v1", "ConfigMap", root)
    return {**made, "binaryData": {pod_files.JOB_FILE: base64.b64encode(part).decode()}}


def worker_template(its: KubeNames, job: PodJob, spec: JobSpec) -> Manifest:
    """Return the template of the workers' pods."""
    labels = its.labels("worker")
    settings = {
        "SPOTELASTIC_GRACE": str(job.grace),
        "SPOTELASTIC_SECRETS": ",".join(sorted(spec.secrets)),
    }
    env = [
        # Kubernetes 1.35 copies the zone from the machine; before that it is empty.
        *filled_in(LOCAL_ADDR="status.podIP", ZONE=f"metadata.labels['{ZONE}']"),
        *filled_in(POD="metadata.name"),
        *({"name": name, "value": value} for name, value in settings.items()),
    ]
    own: Manifest = {"command": [*BOOT, "pod"]}
    if job.metrics_port:
        own["ports"] = [{"name": "metrics", "containerPort": job.metrics_port}]
    made = pod(job, labels, own, env, _mounted(its))
    return merged({"metadata": {"labels": labels}, "spec": made}, job.template)


def _mounted(its: KubeNames) -> dict[str, Manifest]:
    """Return the volumes in which a worker finds the job and its code."""
    parts = [
        {
            "configMap": {
                "name": pod_files.part_name(its.cluster, number),
                "items": [{"key": pod_files.JOB_FILE, "path": pod_files.part_file(number)}],
                "optional": True,
            }
        }
        for number in range(pod_files.MOST_PARTS)
    ]
    return {
        pod_files.JOB_VOLUME: {"configMap": {"name": its.object("job.json")}},
        pod_files.CODE_VOLUME: {"projected": {"sources": parts}},
    }


def _deployment(its: KubeNames, image: str, root: Manifest) -> Manifest:
    answers = {"tcpSocket": {"port": "etcd"}, "timeoutSeconds": 5}
    container = {
        "name": "control",
        "image": image,
        "command": [*BOOT, "kube"],
        "env": [
            *own_variables(),
            {"name": "SPOTELASTIC_CLUSTER", "value": its.cluster},
            *filled_in(POD="metadata.name", NAMESPACE="metadata.namespace"),
            *filled_in(LOCAL_ADDR="status.podIP"),
        ],
        "resources": {
            "requests": {"cpu": "250m", "memory": "512Mi"},
            "limits": {"cpu": "2", "memory": "2Gi"},
        },
        "ports": [{"name": "etcd", "containerPort": CLIENT_PORT}],
        # Patient: a pod that waits for the Lease has no etcd yet.
        "readinessProbe": {**answers, "periodSeconds": 5},
        "livenessProbe": {**answers, "periodSeconds": 20, "failureThreshold": 30},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": writable_mounts(),
    }
    spec = {
        **pod_security(),
        "automountServiceAccountToken": True,
        "serviceAccountName": its.control,
        "terminationGracePeriodSeconds": LEAVES_WITHIN,
        "tolerations": soon(),
        "containers": [container],
        "volumes": writable_volumes("4Gi"),
    }
    labels = its.labels("control-pod")
    made = _control(its, root, "apps/v1", "Deployment")
    # Recreate: two pods would only wait for each other.
    made["spec"] = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    return made


def _service(its: KubeNames, root: Manifest) -> Manifest:
    made = _control(its, root, "v1", "Service")
    made["spec"] = {
        "clusterIP": "None",
        "selector": its.labels("control-pod"),
        "publishNotReadyAddresses": True,
        "ports": [{"name": "etcd", "port": CLIENT_PORT}],
    }
    return made


def _network_policies(its: KubeNames, job: PodJob, root: Manifest) -> list[Manifest]:
    """Return the policies by which nothing but the cluster's own pods reaches them.

    Neither etcd nor the workers' stores have a password. Metrics may be read from elsewhere. What
    pods reach is not limited: where the storage and the API server are is not known here.
    """
    workers = {"podSelector": {"matchLabels": its.labels("worker")}}
    own = {"podSelector": {"matchLabels": its.labels("control-pod")}}
    metrics = [{"ports": [{"port": job.metrics_port}]}] if job.metrics_port else []
    etcd = {"port": CLIENT_PORT}
    reaches: tuple[tuple[str, str, list[Manifest]], ...] = (
        (its.control, "control-pod", [{"from": [workers, own], "ports": [etcd]}, *metrics]),
        (its.spot, "worker", [{"from": [workers]}, *metrics]),
    )
    found = []
    for name, part, ingress in reaches:
        made = _named(its, name, "control", "networking.k8s.io/v1", "NetworkPolicy", root)
        selector = {"matchLabels": its.labels(part)}
        made["spec"] = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
        found.append(made)
    return found


def control_rules(its: KubeNames) -> list[Manifest]:
    """Return the rights of the control pod.

    It makes no pods: groups are there before it, and it changes their sizes alone. Kubernetes names
    pods, and objects have many names: of these it can do what it does with any in its namespace.
    """
    groups = [its.spot, its.on_demand]
    return [
        _rule("", "configmaps", ["get", "list", "create", "update", "patch", "delete"]),
        _rule("", "pods", ["get", "list", "patch", "delete"]),
        _rule("", "pods/log", ["get"]),
        _rule("apps", "replicasets", ["get"], groups),
        _rule("apps", "replicasets/scale", ["patch"], groups),
        _rule("batch", "jobs", ["get", "patch"], [its.switch]),
        _rule("coordination.k8s.io", "leases", ["create"]),
        _rule("coordination.k8s.io", "leases", ["get", "update"], [its.control]),
    ]


def _rule(group: str, resource: str, verbs: list[str], names: Sequence[str] = ()) -> Manifest:
    rule: Manifest = {"apiGroups": [group], "resources": [resource], "verbs": verbs}
    return {**rule, "resourceNames": list(names)} if names else rule


def _control(its: KubeNames, root: Manifest, version: str, kind: str) -> Manifest:
    return _named(its, its.control, "control", version, kind, root)


def _named(
    its: KubeNames, name: str, part: str, version: str, kind: str, root: Manifest | None
) -> Manifest:
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {"app.kubernetes.io/managed-by": "spotelastic", **its.labels(part)},
    }
    if root:
        metadata["ownerReferences"] = [owner(root)]
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
