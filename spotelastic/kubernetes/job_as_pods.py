"""Values that describe a job as pods: the image, and what each pod asks for.

A wrong value is a `UsageError` that names the flag.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotelastic.errors import UsageError

SHARED_MEMORY = "32Gi"
"""Size of /dev/shm for pods that have no memory limit."""
GRACE = 120
"""Default seconds between SIGTERM and SIGKILL for a pod: what a spot interruption leaves."""
LONGEST_NAME = 63
"""Most characters of a name. A job's has fewer: its pods are NAME-workers-on-demand-xxxxx."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9._-]+")
_LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One entry of a Secret, by reference: no value is ever in a manifest."""

    secret: str
    key: str

    def __post_init__(self) -> None:
        checked_name("--secret", self.secret)
        if not _KEY.fullmatch(self.key):
            raise UsageError(f"--secret {self.secret}/{self.key}: not a key of a Secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResources:
    """What one pod asks for. Quantities are as Kubernetes writes them: 4, 500m, 64Gi."""

    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    cpu: str = ""
    memory: str = ""
    """Request and limit; empty: neither."""
    shared_memory: str = ""
    """Size of /dev/shm; empty: half of `memory`, or `SHARED_MEMORY` without one."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further resources by name, e.g. vpc.amazonaws.com/efa."""

    def __post_init__(self) -> None:
        for flag in ("cpu", "memory", "shared_memory"):
            if text := getattr(self, flag):
                quantity(f"--{flag.replace('shared_memory', 'shm-size')}", text)
        if not self.memory or not self.shared_memory:
            return
        memory, shared = (quantity("", text) for text in (self.memory, self.shared_memory))
        if shared >= memory:
            raise UsageError(
                f"--shm-size {self.shared_memory}: counts as the pod's memory, of which --memory "
                f"allows {self.memory}: give less"
            )

    @property
    def shm(self) -> str:
        """The size of /dev/shm."""
        if self.shared_memory or not self.memory:
            return self.shared_memory or SHARED_MEMORY
        return f"{max(1, int(quantity('--memory', self.memory)) // 2 // 2**20)}Mi"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacement:
    """Which of a cluster's machines the pods may run on."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a machine must have, e.g. karpenter.sh/capacity-type: spot."""
    instance_types: tuple[str, ...] = ()
    """Instance types, preferred first; empty: any."""
    tolerations: tuple[Mapping[str, str], ...] = ()
    """Further tolerations; that of GPU machines is always there."""
    spread: bool = False
    """Whether the pods are spread over the zones; otherwise they are kept in one."""

    def __post_init__(self) -> None:
        for name in self.node_selector:
            if not _LABEL.fullmatch(name):
                raise UsageError(f"--node-selector {name}=…: not the name of a label")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodJob:
    """A job whose nodes are pods."""

    name: str
    image: str
    storage: str
    """URL that checkpoints go to. Every pod must reach it."""
    namespace: str = ""
    """Empty: the namespace into which the manifests are applied."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretKey] = field(default_factory=dict)
    """Entries of Secrets by the variable that holds them in the pod."""
    resources: PodResources = PodResources()
    placement: PodPlacement = PodPlacement()
    grace: int = GRACE
    """Seconds between SIGTERM and SIGKILL for a pod."""
    workdir: str = ""
    """Folder of the image that the script is in; empty: the image's own."""
    service_account: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    """What is merged over the pods' template (`pod_template.py`)."""
    metrics_port: int = 0

    def __post_init__(self) -> None:
        checked_name("--name", self.name)
        if self.namespace:
            checked_name("--namespace", self.namespace)
        if not self.image or re.search(r"\s", self.image):
            raise UsageError("--image: name a container image with the script and spotelastic")
        if "://" not in self.storage and not self.storage.startswith("/"):
            raise UsageError(
                f"--storage {self.storage}: give a URL that all pods reach, such as s3://BUCKET/RUN"
            )


def checked_name(flag: str, name: str) -> None:
    """Check the name of an object. Raises `UsageError` if Kubernetes would not take it."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise UsageError(
            f"{flag} {name}: a name is lower-case letters and digits, with hyphens between them, "
            f"and has at most {LONGEST_NAME} characters"
        )


def quantity(flag: str, text: str) -> float:
    """Return the number that a quantity such as 500m, 4 or 64Gi stands for.

    Raises `UsageError`.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError(f"{flag} {text}: expected a quantity such as 4, 500m or 64Gi")
    return float(found[1]) / 1000 if found[2] == "m" else float(found[1]) * _UNITS[found[2] or ""]
