"""Ends workers' pods on nodes that the cluster has marked because they are about to go.

Most clusters drain such a node, and its pods hear of it. Some only mark it, and its pods go with it
unwarned. A pod that is deleted has its grace, which is its notice. As marks are taints, the next
pod is scheduled elsewhere. Listing nodes is a right in the whole cluster: the operator does this
only where an administrator has given it that.

Must never happen: a pod is deleted that is no worker of a cluster, or whose node stays.
"""

from collections.abc import Iterable, Mapping

from spotelastic.client.progress import Say
from spotelastic.clock import steady
from spotelastic.errors import SpotelasticError
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.kube_names import PART

MARKS = frozenset(
    {
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/spot-itn",
        "cloud.google.com/impending-node-termination",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "remediator.kubernetes.azure.com/unschedulable",
        "ToBeDeletedByClusterAutoscaler",
    }
)
"""Taints of nodes that go: of EKS, GKE, Karpenter, AKS and the Cluster Autoscaler."""
LOOK_EVERY = 5.0


def marked(nodes: Iterable[Manifest]) -> dict[str, str]:
    """Return the nodes that are about to go, each with its mark."""
    return {
        each["metadata"]["name"]: taint["key"]
        for each in nodes
        for taint in each["spec"].get("taints") or ()
        if taint["key"] in MARKS
    }


def leaving(pods: Iterable[Manifest], marks: Mapping[str, str]) -> dict[str, str]:
    """Return the pods on such nodes that have not been told, each with the mark."""
    return {
        each["metadata"]["name"]: marks[node]
        for each in pods
        if (node := each["spec"].get("nodeName")) in marks and not pod_reading.is_ending(each)
    }


class MarkedNodes:
    """Looks at the nodes of a cluster for the workers of one namespace."""

    def __init__(self, api: KubeApi, say: Say) -> None:
        self._api, self._say = api, say
        self._due, self._told = 0.0, ""

    def look(self) -> None:
        """Delete the pods that are to leave, if it is time to look. An error is told once."""
        if steady() < self._due:
            return
        self._due, text = steady() + LOOK_EVERY, ""
        try:
            if workers := self._api.found("Pod", {PART: "worker"}):
                marks = marked(self._api.found("Node", {}))
                for name, mark in leaving(workers, marks).items():
                    self._say(f"{name}: its node is about to go ({mark}), which is its notice")
                    self._api.delete("Pod", name)
        except SpotelasticError as error:
            text = f"marks of nodes are not seen: {error}"
        if text and text != self._told:
            self._say(text)
        self._told = text
