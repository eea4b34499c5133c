"""Makes the pod template of a job: one container that runs one node (pure)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spotelastic.kubernetes.job_as_pods import PodJob, PodPlacement, PodResources
from spotelastic.kubernetes.pod_files import FOLDER

Manifest = dict[str, Any]
"""A Kubernetes object, as JSON has it."""

CONTAINER = "node"
ZONE = "topology.kubernetes.io/zone"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
SHARED_MEMORY = "shared-memory"
"""Name of the volume at /dev/shm."""
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
USER = 10001
"""User and group of every container: that of the project's own images, and nobody on a machine."""
HOME = "/var/spotelastic"
GONE_AFTER = 10
"""Seconds after which pods of a machine that does not answer are replaced."""
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
    env: Sequence[Manifest],
    mounted: Mapping[str, Manifest],
) -> Manifest:
    """Return the specification of a pod, whose container's process is the node's agent.

    `labels` are the pod's, `own` is what the container has besides, and `mounted` are volumes that
    it reads, by their names.
    """
    container: Manifest = {
        "name": CONTAINER,
        "image": job.image,
        **own,
        "env": [*own_variables(job.env), *env, *variables(job)],
        "resources": requested(job.resources),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},
            *writable_mounts(),
            *(
                {"name": name, "mountPath": f"{FOLDER / name}", "readOnly": True}
                for name in mounted
            ),
        ],
    }
    if job.workdir:
        container["workingDir"] = job.workdir
    spec: Manifest = {
        "terminationGracePeriodSeconds": job.grace,
        **pod_security(),
        **scheduling(job.placement, labels),
        "containers": [container],
        "volumes": [
            # Has the snapshots: a container's own /dev/shm has 64 MiB.
            {
                "name": SHARED_MEMORY,
                "emptyDir": {"medium": "Memory", "sizeLimit": job.resources.shm},
            },
            *writable_volumes(),
            *({"name": name, **volume} for name, volume in mounted.items()),
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


def filled_in(**paths: str) -> list[Manifest]:
    """Return variables that the kubelet fills in from fields of the pod."""
    return [
        {"name": f"SPOTELASTIC_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in paths.items()
    ]


def variables(job: PodJob) -> list[Manifest]:
    """Return the job's own variables; those that are secret refer to a Secret."""
    # Kubernetes replaces $(NAME), and makes $$ one $.
    plain = [
        {"name": name, "value": text.replace("$", "$$")} for name, text in sorted(job.env.items())
    ]
    hidden = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": of.secret, "key": of.key}}}
        for name, of in sorted(job.secrets.items())
    ]
    return [*plain, *hidden]


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


def scheduling(placement: PodPlacement, labels: Mapping[str, str]) -> Manifest:
    """Return where the pods of a job, which have these labels, may run."""
    affinity: Manifest = {}
    made: Manifest = {"tolerations": [GPU_TOLERATION, *map(dict, placement.tolerations), *soon()]}
    if placement.node_selector:
        made["nodeSelector"] = dict(sorted(placement.node_selector.items()))
    if placement.instance_types:
        affinity["nodeAffinity"] = _instance_types(placement.instance_types)
    selector = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": ZONE}
    if placement.spread:
        wish = {**selector, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
        made["topologySpreadConstraints"] = [wish]
    else:
        wish = {"weight": 50, "podAffinityTerm": selector}
        affinity["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
    return made | ({"affinity": affinity} if affinity else {})


def soon() -> list[Manifest]:
    """Return tolerations by which pods of a machine that does not answer are replaced soon."""
    return [
        {
            "key": f"node.kubernetes.io/{word}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": GONE_AFTER,
        }
        for word in ("not-ready", "unreachable")
    ]


def _instance_types(names: Sequence[str]) -> Manifest:
    """Return an affinity to the named types alone, with the first ones preferred."""

    def only(*values: str) -> Manifest:
        wanted = {"key": INSTANCE_TYPE, "operator": "In", "values": list(values)}
        return {"matchExpressions": [wanted]}

    preferred = [
        {"weight": max(1, 100 - 10 * place), "preference": only(name)}
        for place, name in enumerate(names)
    ]
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only(*names)]},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
