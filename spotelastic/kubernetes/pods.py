"""Makes the pod template of a job: one container that runs one node (pure)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from spotelastic.kubernetes.job_as_pods import PORT, PodJob, PodPlacement, PodResources
from spotelastic.kubernetes.run_command import literal

Manifest = dict[str, Any]
"""A Kubernetes object, as JSON has it."""

CONTAINER = "node"
INDEX = "batch.kubernetes.io/job-completion-index"
"""Label of a pod with its index in the Job."""
ZONE = "topology.kubernetes.io/zone"
MACHINE = "kubernetes.io/hostname"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
SHARED_MEMORY = "shared-memory"
"""Name of the volume at /dev/shm."""
SHARED_MEMORY_MOUNT = {"name": SHARED_MEMORY, "mountPath": "/dev/shm"}
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
USER = 10001
"""User and group of every container: that of the project's own images, and nobody on a machine."""
HOME = "/var/spotelastic"
WRITABLE = {"files": HOME, "tmp": "/tmp"}
"""Volumes for what a container writes, by their names: the rest of its files is read-only."""
CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def pod(
    job: PodJob,
    labels: Mapping[str, str],
    own: Manifest,
    env: Sequence[Manifest] = (),
    mounted: Sequence[tuple[Manifest, Manifest]] = (),
) -> Manifest:
    """Return the specification of a pod, whose container's process is the node's agent.

    `labels` tell the job's pods from others, `own` is what the container has besides, and `mounted`
    are further mounts with their volumes.
    """
    container: Manifest = {
        "name": CONTAINER,
        "image": job.image,
        **own,
        "env": [*own_variables(job.env), *downward(), *env, *variables(job)],
        "resources": requested(job.resources),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [SHARED_MEMORY_MOUNT, *writable_mounts(), *(at for at, _ in mounted)],
    }
    if job.workdir:
        container["workingDir"] = job.workdir
    spec: Manifest = {
        "terminationGracePeriodSeconds": job.grace,
        **pod_security(),
        **scheduling(job, labels),
        "containers": [container],
        "volumes": [
            shared_memory(job.resources),
            *writable_volumes(),
            *(volume for _, volume in mounted),
        ],
    }
    if job.service_account:
        spec["serviceAccountName"] = job.service_account
    return spec


def pod_security() -> Manifest:
    """Return what keeps a pod from more than it needs.

    With `CONTAINER_SECURITY` a namespace of the level `restricted` admits it. The agent asks the
    cluster for nothing.
    """
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def deployment(made: Manifest, labels: Mapping[str, str], pod: Manifest) -> Manifest:
    """Return a Deployment of one pod, whose type and metadata are given."""
    # Recreate: two pods would only wait for each other.
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": dict(labels)},
        "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
    }
    return {**made, "spec": spec}


def granted(named: Callable[[str, str], Manifest], rules: Sequence[Manifest]) -> list[Manifest]:
    """Return a service account, and the Role and RoleBinding of its rights.

    `named` returns an object of an API version and a kind, with its metadata.
    """
    group = "rbac.authorization.k8s.io"
    account = {**named("v1", "ServiceAccount"), "automountServiceAccountToken": False}
    name = account["metadata"]["name"]
    role, binding = named(f"{group}/v1", "Role"), named(f"{group}/v1", "RoleBinding")
    return [
        account,
        {**role, "rules": list(rules)},
        {
            **binding,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        },
    ]


def writable_volumes(size: str = "") -> list[Manifest]:
    """Return the volumes of `WRITABLE`, each of at most that size."""
    limit = {"sizeLimit": size} if size else {}
    return [{"name": name, "emptyDir": dict(limit)} for name in WRITABLE]


def writable_mounts() -> list[Manifest]:
    """Return where a container has them."""
    return [{"name": name, "mountPath": path} for name, path in WRITABLE.items()]


def own_variables(given: Collection[str] = ()) -> list[Manifest]:
    """Return the variables of a user that the image need not know, but for those that are given."""
    values = {"HOME": HOME, "USER": "spotelastic"}
    return [{"name": name, "value": values[name]} for name in values if name not in given]


def downward() -> list[Manifest]:
    """Return variables that the kubelet fills in: flags of `spotelastic run`, which reads them."""
    fields = {
        "SPOTELASTIC_LOCAL_ADDR": "status.podIP",
        # Kubernetes 1.35 copies it from the machine; before that it is empty.
        "SPOTELASTIC_ZONE": f"metadata.labels['{ZONE}']",
    }
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]


def variables(job: PodJob) -> list[Manifest]:
    """Return the job's own variables; those that are secret refer to a Secret."""
    plain = [{"name": name, "value": literal(value)} for name, value in sorted(job.env.items())]
    hidden = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": of.secret, "key": of.key}}}
        for name, of in sorted(job.secrets.items())
    ]
    return [*plain, *hidden]


def ports(metrics_port: int = 0) -> list[Manifest]:
    """Return the ports that have names; workers and daemons take free ones."""
    named = {"etcd": PORT, "etcd-peer": PORT + 1}
    named |= {"metrics": metrics_port} if metrics_port else {}
    return [{"name": name, "containerPort": port} for name, port in named.items()]


def requested(resources: PodResources) -> Manifest:
    """Return requests and limits. A GPU is limited alone, which requests it, too."""
    limits: dict[str, Any] = dict(sorted(resources.more.items()))
    if resources.gpus:
        limits[resources.gpu_resource] = resources.gpus
    requests: dict[str, Any] = {}
    if resources.cpu:
        requests["cpu"] = resources.cpu  # without a limit: data loaders use what is free
    if resources.memory:
        requests["memory"] = limits["memory"] = resources.memory
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def shared_memory(resources: PodResources) -> Manifest:
    """Return the volume that snapshots are in; a container's own /dev/shm has 64 MiB."""
    return {
        "name": SHARED_MEMORY,
        "emptyDir": {"medium": "Memory", "sizeLimit": resources.shm},
    }


def scheduling(job: PodJob, labels: Mapping[str, str]) -> Manifest:
    """Return where the pods of a job may run."""
    placement = job.placement
    made: Manifest = {"topologySpreadConstraints": _spread(job, labels)}
    if placement.node_selector:
        made["nodeSelector"] = dict(sorted(placement.node_selector.items()))
    if placement.instance_types:
        made["affinity"] = {"nodeAffinity": _instance_types(placement)}
    made["tolerations"] = [GPU_TOLERATION, *map(dict, placement.tolerations)]
    return made


def hosts_only(job: PodJob, labels: Mapping[str, str]) -> Manifest:
    """Return the selector of those pods of a job that run etcd members."""
    first = [str(index) for index in range(job.hosts)]
    return {
        "matchLabels": dict(labels),
        "matchExpressions": [{"key": INDEX, "operator": "In", "values": first}],
    }


def _spread(job: PodJob, labels: Mapping[str, str]) -> list[Manifest]:
    """Return constraints that keep one zone, or one machine, from holding several members of etcd.

    They are wishes: a job is better off with its members in one zone than without them.
    """
    whole = {"matchLabels": dict(labels)}
    hosts = hosts_only(job, labels)
    over = [(ZONE, whole if job.placement.spread else hosts), (MACHINE, hosts)]
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
        }
        for key, selector in over
    ]


def _instance_types(placement: PodPlacement) -> Manifest:
    """Return an affinity to the named types alone, with the first ones preferred."""
    names = placement.instance_types

    def only(*values: str) -> Manifest:
        return {
            "matchExpressions": [
                {"key": INSTANCE_TYPE, "operator": "In", "values": list(values)},
            ]
        }

    required = {"nodeSelectorTerms": [only(*names)]}
    preferred = [
        {"weight": max(1, 100 - 10 * place), "preference": only(name)}
        for place, name in enumerate(names)
    ]
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
