"""Shows what a local cluster has left on this machine, while no local cloud runs.

So a cluster that is gone is shown as one on AWS is, by its last status, report and bill.
"""

from contextlib import suppress

from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import open_storage

from spotelastic.client.interrupt import InterruptionRequest
from spotelastic.client.progress import Say
from spotelastic.client.published import summary_of
from spotelastic.client.targets.cloud_target import CloudEnded, CloudTarget, ClusterTarget
from spotelastic.client.targets.local_data import (
    LeftCluster,
    buckets,
    delete,
    left_cluster,
    refuse,
    tell_gone,
    written_at,
)
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.local import cloud
from spotelastic.local.base import kept_objects
from spotelastic.model.job import AccountDemands
from spotelastic.model.progress import ClusterSummary

S3 = "s3://"
START = "start one with `spotelastic up --local --detach SCRIPT`"


class LeftTarget(ClusterTarget):
    """What local clusters have left on this machine: one of them, or all."""

    def __init__(self, left: LeftCluster | None = None) -> None:
        self._one = left

    @classmethod
    def of(cls, name: str) -> "LeftTarget | None":
        """Return where the cluster of that name has left its job; None if it has not."""
        left = left_cluster(name)
        return None if left is None else cls(left)

    @property
    def _left(self) -> LeftCluster:
        if self._one is None:
            raise UsageError(f"no local cloud is running: {START}")
        return self._one

    # -- what it has -----------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Return nothing: no cluster exists."""
        return ()

    def listing(self) -> tuple[ClusterSummary, ...]:
        """Return nothing: no cluster exists."""
        return ()

    def ended(self, since: float) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster that was seen last since then (in epoch seconds)."""
        names = {name for bucket in buckets() for name in kept_objects.names(bucket)}
        found = []
        for name in sorted(names):
            with suppress(EnvironmentFailure):  # what cannot be read is left out
                its = left_cluster(name)
                if its is not None and written_at(its.objects) >= since * 1e9:
                    found.append(summary_of(its, is_gone=True))
        return tuple(each for each in found if each.at >= since)

    def known(self, name: str) -> ShownCluster | None:
        """Return None: no cluster exists."""
        return None

    def cluster(self, name: str | None) -> ShownCluster:
        """Raise `UsageError`."""
        refuse(self._left.name)

    def cluster_or_gone(
        self, name: str | None, note: Say, left: str = "this is its last report"
    ) -> ShownCluster:
        """Return what the cluster has left, and `note` that it is gone."""
        its = self._one if self._one is not None or name is None else left_cluster(name)
        if its is None:
            raise UsageError(f"no local cluster {name or ''} has left anything: {START}")
        note(f"{its.name} is gone: {left}")
        return its

    def storage(self, url: str) -> Storage:
        """Open the folder that a URL of a bucket means. Raises `UsageError` if there is none."""
        if not url.startswith(S3):
            return open_storage(url)
        bucket, _, key = url[len(S3) :].partition("/")
        folder = cloud.buckets() / bucket / kept_objects.path_of(key.rstrip("/"))
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder")
        return open_storage(str(folder))

    def account(self, what: str) -> CloudTarget:
        """Raise `UsageError`."""
        refuse(self._left.name)

    # -- what is said of it ----------------------------------------------------------------------

    @property
    def where_to_look(self) -> str:
        """Where the files are."""
        return f"see {cloud.buckets() if self._one is None else self._one.objects.url('')}"

    def arguments_of(self, name: str) -> str:
        """Return the arguments by which other commands find the cluster of that name."""
        return f"{name} --local"

    # -- what is checked -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `CloudEnded` once a local cloud runs, in which the cluster may be up again."""
        if cloud.find() is not None:
            raise CloudEnded("the local cloud of this cluster has ended, and another one runs now")

    # -- how a cluster ends ----------------------------------------------------------------------

    def down(
        self, name: str | None, say: Say, *, keep_data: bool = True, bucket: str | None = None
    ) -> None:
        """Tell that it is gone and what deletes its data, or delete these."""
        if keep_data:
            tell_gone(self._left, say)
        else:
            delete(self._left, say)

    def data_of(self, name: str, bucket: str | None = None) -> tuple[str, str]:
        """Return the run whose checkpoints `down` can delete, and their folder."""
        return self._left.run, str(self._left.folder)

    def remove_network(self, say: Say) -> None:
        """Do nothing: there is none."""

    def interrupt(self, what: InterruptionRequest, demands: AccountDemands) -> float | None:
        """Raise `UsageError`."""
        refuse(self._left.name)
