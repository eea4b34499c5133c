"""Declares the options of `up --kube` and `spotelastic kube` about pods.

In `spotelastic.toml` they are the table `kubernetes`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotelastic.client.config.option import UP, option
from spotelastic.client.config.panels import PODS


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """Where and how a job's pods run."""

    PANEL = PODS

    kube: bool = option(False, "Run the nodes as pods of a Kubernetes cluster.", off="no-kube")
    context: str | None = option(
        None, "Context of the kubeconfig.", shown_default="the current one"
    )
    namespace: str | None = option(
        None, "Namespace of the job.", shown_default="that of the context"
    )
    queue: str | None = option(
        None,
        "Queue of Kueue (a LocalQueue) that admits the job as a whole.",
        effect=UP,
        metavar="NAME",
    )
    storage: str | None = option(
        None,
        "Where checkpoints go, for all pods: a URL, or a folder of a shared volume.",
        metavar="URL",
        shown_default="s3://BUCKET/NAME/checkpoints with --bucket",
    )
    cpu: str | int | None = option(
        None, "CPUs that a pod requests: 8, 500m.", effect=UP, metavar="N"
    )
    memory: str | None = option(
        None, "Memory of a pod, requested and at most: 64Gi.", effect=UP, metavar="SIZE"
    )
    shm_size: str | None = option(
        None,
        "Size of /dev/shm, which is part of a pod's memory and holds the snapshots.",
        effect=UP,
        metavar="SIZE",
        shown_default="half of --memory, or 32Gi",
    )
    gpu_resource: str = option(
        "nvidia.com/gpu", "Name under which machines offer their GPUs.", effect=UP, metavar="NAME"
    )
    resource: Sequence[str] | Mapping[str, str] = option(
        (),
        "Further resource of a pod, e.g. vpc.amazonaws.com/efa=4. Can be repeated.",
        effect=UP,
        metavar="NAME=N",
    )
    grace_period: int = option(
        120,
        "Seconds that a pod has from SIGTERM to SIGKILL.",
        effect=UP,
        metavar="SECONDS",
        least=1,
    )
    node_selector: Sequence[str] | Mapping[str, str] = option(
        (),
        "Label that a pod's machine must have. Can be repeated.",
        effect=UP,
        metavar="NAME=VALUE",
    )
    toleration: Sequence[str] = option(
        (),
        "Taint that pods tolerate, besides that of GPUs: KEY, KEY=VALUE, with :EFFECT.",
        effect=UP,
        metavar="TAINT",
    )
    service_account: str | None = option(
        None, "Service account of the pods, by which they reach the storage.", effect=UP
    )
    pod_template: str | None = option(
        None,
        "Pod template that is merged over the workers': a file of YAML or JSON, or JSON.",
        effect=UP,
        metavar="FILE",
    )
    workdir: str | None = option(
        None,
        "Folder of the image that the script is in.",
        effect=UP,
        metavar="DIR",
        shown_default="the image's own",
    )
    secrets_from: str | None = option(
        None,
        "Secret that has the values of --secret, under their names.",
        effect=UP,
        metavar="NAME",
        shown_default="the job's name",
    )
