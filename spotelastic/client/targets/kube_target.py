"""The clusters in a namespace on Kubernetes, as the commands see them."""

import threading
from dataclasses import dataclass

from spotelastic.client.interrupt import InterruptionRequest
from spotelastic.client.kubernetes import take_down
from spotelastic.client.kubernetes.kube_cluster import KubeCluster, root
from spotelastic.client.progress import Say
from spotelastic.client.published import status_of, summary_of
from spotelastic.client.targets.cloud_target import CloudTarget, ClusterTarget
from spotelastic.clock import steady
from spotelastic.errors import (
    EnvironmentFailure,
    OtherVersion,
    SeveralClusters,
    Unavailable,
    UsageError,
)
from spotelastic.kubernetes import elastic_job
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import api_client as kube_api
from spotelastic.kubernetes.provider import pod_capacity
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kube_names import CLUSTER, PART
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED, AccountDemands
from spotelastic.model.progress import ClusterSummary

GONE_WITHIN = 600.0
"""Seconds within which all of a cluster is gone; pods have their grace."""
LET_GO_WITHIN = 15.0
"""Seconds within which an operator sees that nothing is left of a cluster."""
LOOK = 0.5


@dataclass(frozen=True, slots=True)
class KubePlace:
    """A namespace on Kubernetes, as a command names it."""

    context: str | None = None
    """A context of the kubeconfig; None: the current one."""
    namespace: str | None = None
    """None: that of the context."""


class KubeTarget(ClusterTarget):
    """The clusters in one namespace."""

    def __init__(self, place: KubePlace, api: KubeApi | None = None) -> None:
        self._place = place
        self.api = api or kube_api.connect(place.context, place.namespace)

    # -- what it has -----------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Return the names of all clusters, including incomplete ones."""
        found = {str(each["metadata"]["labels"][CLUSTER]) for each in self._all("ConfigMap")}
        return tuple(sorted(found))

    def listing(self) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster."""
        return tuple(map(self._summary, self.names()))

    def _summary(self, name: str) -> ClusterSummary:
        try:
            left = self._left(name)
        except OtherVersion:
            return ClusterSummary(name, "of another version")
        if left is None:
            return ClusterSummary(name, "gone")
        return summary_of(left, is_gone=root(self.api, name) is None)

    def known(self, name: str) -> KubeCluster | None:
        """Return the cluster of that name, or None."""
        return self._left(name) if root(self.api, name) is not None else None

    def _left(self, name: str) -> KubeCluster | None:
        return KubeCluster.of(self.api, name)

    def cluster(self, name: str | None) -> KubeCluster:
        """Return the cluster of that name, or the only one there is. Raises `UsageError`."""
        name = self._only_one() if name is None else name
        found = self.known(name)
        if found is None:
            names = self.names()
            if queued := self._queued(name):
                raise UsageError(queued)
            if name in names:
                raise UsageError(self._gone(name))
            others = f"; there are: {', '.join(names)}" if names else ""
            raise UsageError(f"there is no cluster {name} in {self._where}{others}")
        return found

    def cluster_or_gone(
        self, name: str | None, note: Say, left: str = "this is its last report"
    ) -> KubeCluster:
        """Return the cluster, or what one that has ended by itself has left, and `note` that."""
        if name is not None and root(self.api, name) is None:
            gone = self._left(name)
            if gone is not None:
                is_gone = self._queued(name) or f"{name} is gone"
                note(f"{is_gone}: {left}; `{self._down(name)}` removes that, too")
                return gone
        return self.cluster(name)

    def _queued(self, name: str) -> str:
        """Return what is said of a job that waits in a queue; empty: it does not."""
        status = (self.api.get(elastic_job.KIND, name) or {}).get("status") or {}
        if status.get("state") not in (elastic_job.QUEUED, elastic_job.SUSPENDED):
            return ""
        return f"{name} is {status['state']} and has no pods ({status['message']})"

    def _gone(self, name: str) -> str:
        """Return what is left of a cluster that is not there as a whole, for people."""
        left = self._left(name)
        if left is None:
            return f"{name} is gone, or incomplete; `{self._down(name)}` removes it"
        status = status_of(left)
        ended = f"has {status.state}" if status.state in ENDED else "was cut off"
        return (
            f"{name} is gone: its job {ended} at step {status.step}; `spotelastic up --kube` goes "
            f"on from its checkpoint, and `{self._down(name)}` removes its last report"
        )

    def _only_one(self) -> str:
        names = self.names()
        if len(names) > 1:
            raise SeveralClusters(names)
        if not names:
            raise UsageError(
                f"there is no cluster in {self._where}: start one with `spotelastic up --kube`"
            )
        return names[0]

    def account(self, what: str) -> CloudTarget:
        """Raise `UsageError`: a namespace is no account."""
        raise UsageError(f"{what} is for clusters on AWS: use kubectl for the pods of this one")

    # -- what is said of it ----------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"the namespace {self.api.namespace}"

    @property
    def where_to_look(self) -> str:
        """Where the user can see why nodes do not start."""
        return f"see `kubectl --namespace {self.api.namespace} get pods,events`"

    def arguments_of(self, name: str) -> str:
        """Return the arguments by which other commands find the cluster of that name."""
        given = {"context": self._place.context, "namespace": self._place.namespace}
        words = [f"--{flag} {value}" for flag, value in given.items() if value]
        return " ".join([name, "--kube", *words])

    def _down(self, name: str) -> str:
        return f"spotelastic down {self.arguments_of(name)}"

    # -- what is checked -------------------------------------------------------------------------

    def check_room(self, nodes: int, workers: int) -> None:
        """Do nothing: pods wait for machines that there are not yet."""

    def check_kind(self, what: InterruptionRequest) -> None:
        """Raise `UsageError` for what a pod cannot meet."""
        if what.kind not in (InterruptionKind.SPOT_INTERRUPTION, InterruptionKind.LOSS):
            raise UsageError(
                f"--kind {what.typed}: pods on Kubernetes get a notice, or are lost: give notice "
                "or loss"
            )

    # -- how a cluster ends ----------------------------------------------------------------------

    def down(
        self, name: str | None, say: Say, *, keep_data: bool = True, bucket: str | None = None
    ) -> None:
        """Take a cluster down, with all that it has in the namespace. Checkpoints stay.

        It may be interrupted and repeated at any point. Must never happen: it leaves something that
        runs and is not found any more. So what it is found by goes last.
        """
        name = self._only_one() if name is None else name
        resource = self.api.get(elastic_job.KIND, name)
        if resource is None and not take_down.left(self.api, name):
            raise UsageError(f"there is no cluster {name} in {self._where}")
        left = self._left_of(name)
        say(f"{name}: ending its pods, which have their grace to save")
        if resource is not None:
            self.api.delete(elastic_job.KIND, name)
        self._await_end(name, say)
        self._await_resource(name)
        say(f"{name} is gone")
        if left:
            say(f"its checkpoints stay in {left}; `spotelastic ckpt` shows and deletes them")

    def _left_of(self, name: str) -> str:
        try:
            spec = ConfigMapObjects(self.api, name).job()
        except EnvironmentFailure:
            return ""
        return "" if spec is None else spec.storage

    def _await_end(self, name: str, say: Say) -> None:
        deadline, told = steady() + GONE_WITHIN, 0
        while found := take_down.step(self.api, name):
            if len(found) != told:
                say(f"{name}: {len(found)} objects are ending")
            told = len(found)
            if steady() > deadline:
                names = ", ".join(found[:5])
                raise Unavailable(f"{name} is not gone after {GONE_WITHIN:.0f} s: {names} are left")
            threading.Event().wait(LOOK)

    def _await_resource(self, name: str) -> None:
        """Wait until the ElasticJob is gone. Without an operator nobody else lets it go."""
        deadline = steady() + LET_GO_WITHIN
        while self.api.get(elastic_job.KIND, name) is not None:
            if steady() > deadline:
                take_down.hold(self.api, name, held=False)
            threading.Event().wait(LOOK)

    def data_of(self, name: str, bucket: str | None = None) -> tuple[str, str]:
        """Raise `UsageError`: the storage may be anywhere."""
        raise UsageError(
            f"--delete-data: checkpoints of clusters on Kubernetes are in {self._left_of(name)}: "
            "delete them with `spotelastic ckpt rm`, or there"
        )

    def remove_network(self, say: Say) -> None:
        """Raise `UsageError`: there is none."""
        raise UsageError("--network: clusters on Kubernetes have no network of their own")

    # -- what befalls it -------------------------------------------------------------------------

    def interrupt(self, what: InterruptionRequest, demands: AccountDemands) -> float | None:
        """Delete the node's pod with its grace as the notice.

        A loss has the least that Kubernetes gives: a kubelet raises less to one second.
        """
        pod = self.api.get("Pod", what.node)
        if pod is None:
            raise UsageError(f"there is no pod {what.node}")
        grace = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        least = float(pod_capacity.AT_ONCE)
        seconds = max(least, min(what.seconds, grace)) if what.warns else least
        self.api.delete("Pod", what.node, int(seconds))
        return seconds

    # -- within ----------------------------------------------------------------------------------

    def _all(self, kind: str) -> list[Manifest]:
        found = [*self.api.found(kind, {PART: "root"}), *self.api.found(kind, {PART: "object"})]
        return [each for each in found if CLUSTER in each["metadata"]["labels"]]
