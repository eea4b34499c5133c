"""Names the objects of a cluster on Kubernetes, and the labels by which they are found (pure)."""

import hashlib
import re
from dataclasses import dataclass

CLUSTER = "spotelastic/cluster"
"""Label of all objects that `up` and the controller make, with the cluster's name."""
PART = "spotelastic/part"
"""Label with what an object is for."""
GROUP = "spotelastic/group"
"""Label of a pod with its worker group."""
OBJECT = "spotelastic/object"
"""Annotation of a ConfigMap with the name of the object that it holds."""

_PLAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class KubeNames:
    """The names of one cluster's objects."""

    cluster: str

    @property
    def spot(self) -> str:
        """The ReplicaSet of spot workers."""
        return f"{self.cluster}-workers"

    @property
    def on_demand(self) -> str:
        """The ReplicaSet of on-demand workers."""
        return f"{self.cluster}-workers-on-demand"

    @property
    def switch(self) -> str:
        """The Job without pods that owns both, and ends when nobody looks after them."""
        return f"{self.cluster}-unattended"

    @property
    def root(self) -> str:
        """The ConfigMap that owns all that runs."""
        return f"{self.cluster}-cluster"

    @property
    def control(self) -> str:
        """The controller's Deployment, its Service, account, roles and Lease."""
        return f"{self.cluster}-control"

    @property
    def secrets(self) -> str:
        """The Secret with the values of --secret, and of --notify."""
        return f"{self.cluster}-secrets"

    def object(self, name: str) -> str:
        """Return the ConfigMap that holds an object, or its beginning."""
        if len(name) < 64 and _PLAIN.fullmatch(name):
            return f"{self.cluster}.{name}"
        return f"{self.cluster}.{hashlib.sha256(name.encode()).hexdigest()[:20]}"

    def labels(self, part: str = "") -> dict[str, str]:
        """Return the labels of the cluster's objects; with `part`, of those for one purpose."""
        return {CLUSTER: self.cluster, **({PART: part} if part else {})}
