"""Defines what a cloud is to the client: where clusters are found, made, interrupted and ended.

There are AWS (aws_target.py), the local cloud on this machine (local_target.py), and, for clusters
that exist, a namespace on Kubernetes (kube_target.py). Whatever differs between them is a method
here, so that no caller asks which one it has. What most of them have in common is here, too.
"""

from typing import Protocol

from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import open_storage

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.client.interrupt import InterruptionRequest
from spotelastic.client.progress import Say
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.errors import EnvironmentFailure
from spotelastic.local.drill import FaultInjector
from spotelastic.model.job import AccountDemands, JobSpec
from spotelastic.model.progress import ClusterSummary, NodeStatus


class CloudEnded(EnvironmentFailure):
    """The local cloud has ended, with all its clusters."""


class ClusterTarget(Protocol):
    """A place with its clusters, as commands see it: an AWS account, or a namespace."""

    # -- what it has -----------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Return the names of all clusters."""

    def listing(self) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster."""

    def ended(self, since: float) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster that is gone and was seen last since then.

        `since` is in epoch seconds. Clusters in the listing are left out.
        """
        return ()

    def known(self, name: str) -> ShownCluster | None:
        """Return the cluster of that name, or None."""

    def cluster(self, name: str | None) -> ShownCluster:
        """Return the cluster of that name, or the only one there is. Raises `UsageError`."""

    def cluster_or_gone(
        self, name: str | None, note: Say, left: str = "this is its last report"
    ) -> ShownCluster:
        """Return the cluster, or what one of that name that is gone has left, and `note` that."""

    def storage(self, url: str) -> Storage:
        """Open the storage at a URL of a bucket."""
        return open_storage(url)

    def account(self, what: str) -> "CloudTarget":
        """Return the account that this is. Raises `UsageError` if it is none; `what` needs one."""

    # -- what is said of it ----------------------------------------------------------------------

    @property
    def where_to_look(self) -> str:
        """Where the user can see why nodes do not start."""

    def arguments_of(self, name: str) -> str:
        """Return the arguments by which other commands find the cluster of that name."""

    # -- what is checked -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `CloudEnded` if the cloud is no longer there."""
        return

    def check_room(self, nodes: int, workers: int) -> None:
        """Raise `EnvironmentFailure` if so many nodes do not fit where they would run."""
        return

    def check_spot(self, name: str, node: str) -> None:
        """Raise `UsageError` for a node of the cluster that is never given a notice."""
        return

    def check_kind(self, what: InterruptionRequest) -> None:
        """Raise `UsageError` for an interruption that this cloud can cause of no node at all."""
        return

    def control_failure(self, name: str, waited: float) -> str:
        """Return why the control nodes of a new cluster will not come.

        Empty while they may still come, and where nobody knows. `waited`: seconds since they were
        asked for.
        """
        return ""

    def note_worked(self, cluster: ShownCluster) -> None:
        """Note that a new cluster works here, so that the next one need not be as careful."""
        return

    def allow(self, spec: JobSpec, nodes: int, say: Say) -> None:
        """Let the cluster of that job have so many nodes. Raises `UsageError` if it may not."""
        return

    # -- how a cluster ends ----------------------------------------------------------------------

    def owns(self, name: str) -> bool:
        """Whether the cluster ends with those who use it, of whom this process is one."""
        return False

    def keep(self, name: str) -> None:
        """Declare that the cluster outlives those who use it."""
        return

    def leave(self, say: Say) -> bool:
        """End this process's use of the cloud; return whether the cluster ends with it.

        What is not in use any more ends; on AWS, that is nothing.
        """
        return False

    def finish(self, name: str, say: Say) -> None:
        """End a cluster whose job is over, unless somebody else in this cloud still uses it."""
        self.down(name, say)

    def down(
        self, name: str | None, say: Say, *, keep_data: bool = True, bucket: str | None = None
    ) -> None:
        """Take a cluster down, whoever uses it; without a name the only one there is."""

    def data_of(self, name: str, bucket: str | None = None) -> tuple[str, str]:
        """Return the run whose checkpoints `down` can delete, and their URL.

        `bucket` is for a cluster that is gone and used another one than `up` in this folder. Raises
        `UsageError` where it cannot.
        """

    def remove_network(self, say: Say) -> None:
        """Remove the network that clusters share. Raises `UsageError` while one is in it."""

    # -- what befalls it ------------------------------------------------------------------------

    def interrupt(self, what: InterruptionRequest, demands: AccountDemands) -> float | None:
        """Interrupt a node; return the seconds until it goes, None if it stays.

        `check_kind` has let the request pass. `demands` are those of what has to be made for it.
        """


class CloudTarget(ClusterTarget, Protocol):
    """An account with its clusters, real or local."""

    aws: Aws
    """The account's services."""

    # -- what it has (account.py) --------------------------------------------------------------

    @property
    def bucket(self) -> str:
        """The bucket that all clusters of the account and region share."""

    def known(self, name: str) -> ClusterRecord | None:
        """Return the cluster of that name, or None."""

    def cluster(self, name: str | None) -> ClusterRecord:
        """Return the cluster of that name, or the only one there is. Raises `UsageError`."""

    def cluster_or_gone(
        self, name: str | None, note: Say, left: str = "this is its last report"
    ) -> ClusterRecord:
        """Return the cluster, or what one of that name that is gone has left, and `note` that."""

    def left(self, name: str) -> ClusterRecord | None:
        """Return a cluster that has ended, by what it has left in its bucket; None if nothing."""

    def only_one(self) -> str:
        """Return the name of the only cluster. Raises `UsageError` if there is none, or several."""

    def in_region(self, region: str) -> "CloudTarget":
        """Return the same account in another region."""

    def other_regions(self, name: str) -> tuple[str, ...]:
        """Return the other regions in which the job has clusters, as its description names them."""

    # -- what is said of it ----------------------------------------------------------------------

    @property
    def costs_money(self) -> bool:
        """Whether what is created here is billed."""

    @property
    def price_label(self) -> str:
        """What follows a price, where it is not a real one."""

    def about_prices(self, date: str) -> str:
        """Return the sentence below a table of prices; on-demand prices are those of `date`."""

    def check_sessions(self, node: NodeStatus) -> None:
        """Raise `UsageError` if no session can be opened on a node."""
        return

    # -- how a cluster begins --------------------------------------------------------------------

    def fitted(self, spec: ClusterSpec) -> ClusterSpec:
        """Return the specification with what this cloud prescribes: network and software."""

    def create(self, spec: ClusterSpec, say: Say, *, new: bool) -> ClusterRecord:
        """Create a cluster, or change it to be as specified. `new`: it is not known yet."""

    def hold(self) -> None:
        """Use the cloud until this process ends, if it does not leave before."""
        return

    def delete(self, name: str, say: Say, *, keep_data: bool, bucket: str | None) -> None:
        """Take a cluster down in this region alone, piece by piece, and tell what stays stored."""

    def faults(self) -> FaultInjector:
        """Return what causes the faults of a drill. Raises `UsageError` if it has no such thing."""
