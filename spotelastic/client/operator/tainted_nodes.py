"""Ends workers' pods on nodes whose taint says that they are about to go.

Most clusters drain such a node, and its pods hear of it. Some only taint it, and its pods go with
it unwarned. A pod that is deleted has its grace, which is its notice, and the taint has the next
pod scheduled elsewhere. Listing nodes is a right in the whole cluster: the operator does this only
where an administrator has given it that.

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

TAINTS = frozenset(
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
"""Those of nodes that go, on EKS, GKE and AKS, and of Karpenter and the Cluster Autoscaler."""
LOOK_EVERY = 5.0


def going(nodes: Iterable[Manifest]) -> dict[str, str]:
    """Return the nodes that are about to go, each with the taint that says so."""
    return {
        each["metadata"]["name"]: taint["key"]
        for each in nodes
        for taint in (each.get("spec") or {}).get("taints") or ()
        if taint["key"] in TAINTS
    }


def leaving(pods: Iterable[Manifest], taints: Mapping[str, str]) -> dict[str, str]:
    """Return the pods on such nodes that have not been told, each with its node's taint."""
    return {
        each["metadata"]["name"]: taints[node]
        for each in pods
        if (node := each["spec"].get("nodeName")) in taints and not pod_reading.is_ending(each)
    }


class TaintedNodes:
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
                taints = going(self._api.found("Node", {}))
                for name, taint in leaving(workers, taints).items():
                    self._say(f"{name}: its node is about to go ({taint}), which is its notice")
                    self._api.delete("Pod", name)
        except SpotelasticError as error:
            text = f"taints of nodes are not seen: {error}"
        if text and text != self._told:
            self._say(text)
        self._told = text
