"""Finds, lists and takes down the clusters of an account, which the local cloud is to them, too."""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
from spotelastic_checkpoints.commit.latest import LATEST, ForwardPointer, decoded

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws, Rejected, refusable
from spotelastic.aws.base.names import SHARED_NETWORK, Names
from spotelastic.aws.clusters import control_boot, lifecycle, stored_data, teardown
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.clusters.stored_data import StoredData
from spotelastic.aws.compute import autoscaling, instance_types, worker_groups
from spotelastic.aws.compute.prices import STORED
from spotelastic.aws.compute.quotas import Quotas
from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.bucket import BucketObjects, clusters_in
from spotelastic.aws.network import cloudformation, shared_network
from spotelastic.client.config import config_file
from spotelastic.client.published import summary_of
from spotelastic.client.targets.asleep import other_regions, sleeps
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.cloud.bucket import CHECKPOINTS
from spotelastic.errors import EnvironmentFailure, OtherVersion, SeveralClusters, UsageError
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import ClusterSummary

READERS = 8
"""Clusters that are read at the same time."""
INCOMPLETE = "{0} is incomplete, and may cost money: `spotelastic down {0}` removes what is left"
WORTH_TELLING = 0.005
"""Smallest size, in GB, whose cost is worth reporting."""


class AccountClusters(CloudTarget):
    """The clusters of one account and region."""

    def __init__(self, aws: Aws) -> None:
        self.aws = aws
        self._ended: dict[str, ClusterSummary | None] = {}
        """Clusters that are gone, of which nothing changes until there is one of that name."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all clusters."""
        return lifecycle.all_names(self.aws)

    def account(self, what: str) -> CloudTarget:
        """Return this: it is an account."""
        return self

    def arguments_of(self, name: str) -> str:
        """Return the arguments by which other commands find the cluster of that name."""
        return name

    def listing(self) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster."""
        return tuple(map(self._summary, self.names()))

    def _summary(self, name: str) -> ClusterSummary:
        try:
            with refusable():  # by its bucket: the others are listed, and it costs what it costs
                return _listed(name, self.known(name))
        except OtherVersion:
            return ClusterSummary(name, "of another version")
        return ClusterSummary(name, "not readable")

    def known(self, name: str) -> ClusterRecord | None:
        """Return the cluster of that name, or None."""
        return lifecycle.find(name, self.aws)

    @property
    def bucket(self) -> str:
        """The bucket that all clusters of the account and region share."""
        return account.default_bucket(self.aws)

    def cluster(self, name: str | None) -> ClusterRecord:
        """Return the cluster of that name, or the only one there is. Raises `UsageError`."""
        if name is None:
            name = self.only_one()
        found = lifecycle.find(Names(name).cluster, self.aws)
        if found is None:
            names = self.names()
            if name in names:
                raise UsageError(INCOMPLETE.format(name))
            others = f"; the clusters are: {', '.join(names)}" if names else ""
            raise UsageError(f"there is no cluster named {name}{others}")
        return found

    def cluster_or_gone(
        self,
        name: str | None,
        note: Callable[[str], None],
        left: str = "this is its last report",
    ) -> ClusterRecord:
        """Return the cluster, or one of that name that is gone and has left its last status.

        For a cluster that is gone, `note` is called: that it is, what is `left`, and which
        leftovers still cost money.
        Only its stored objects can be used.
        """
        if name is not None and lifecycle.find(Names(name).cluster, self.aws) is None:
            gone = self.left(name)
            if gone is not None:
                if name in self.names():
                    note(INCOMPLETE.format(name))
                note(f"{name} is gone: {left}")
                return gone
        return self.cluster(name)

    def ended(self, since: float) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster that is gone and was seen last since then.

        `since` is in epoch seconds. The clusters are known by what they have left in the configured
        and the shared bucket.
        """
        buckets = dict.fromkeys(filter(None, (configured("bucket"), self.bucket)))
        left = {name for bucket in buckets for name in clusters_in(self.aws, bucket)}
        left -= set(self.names())
        known = {name: its for name, its in self._ended.items() if name in left}
        new = sorted(left - known.keys())
        with ThreadPoolExecutor(READERS, thread_name_prefix="ended") as pool:
            self._ended = known | dict(zip(new, pool.map(self._last_of, new), strict=True))
        return tuple(its for its in self._ended.values() if its is not None and its.at >= since)

    def _last_of(self, name: str) -> ClusterSummary | None:
        """Return what a cluster that is gone has left, as a row.

        None if it has left no job, or one that cannot be read.
        """
        try:
            its = self.left(name)
            found = None if its is None else summary_of(its, is_gone=True)
        except Rejected:
            raise
        except EnvironmentFailure:
            return None
        pointer = None if its is None else forward_pointer(its)
        if found is not None and pointer is not None and pointer.region:
            return replace(found, state=f"moved to {pointer.region}")
        return found

    def left(self, name: str) -> ClusterRecord | None:
        """Return a cluster that has ended, by its data in the configured or the shared bucket."""
        for bucket in (configured("bucket"), self.bucket):
            job = BucketObjects(self.aws, bucket, name).job() if bucket else None
            if bucket and job is not None:
                return ClusterRecord(self.aws, job, bucket)
        return None

    def _bucket_of(self, name: str, bucket: str | None) -> str:
        """Return the cluster's bucket: from its stack, the flag, or where its job lies."""
        its = Names(name)
        if not bucket and cloudformation.describe(self.aws, its.stack) is None:
            gone = self.left(name)
            bucket = gone.bucket if gone is not None else None
        return teardown.bucket_of(self.aws, its, bucket or "")

    def only_one(self) -> str:
        """Return the name of the only cluster. Raises `UsageError` if there is none, or several."""
        names = self.names()
        if len(names) > 1:
            raise SeveralClusters(names)
        if not names:
            raise UsageError(
                "there is no cluster: start one with `spotelastic up SCRIPT`, or name one that is "
                "gone to see its status, events, logs or report"
            )
        return names[0]

    def data(self, name: str, bucket: str | None = None) -> StoredData:
        """Return what the cluster of that name has stored.

        `bucket` is for a cluster that is gone and used another bucket than `up` in this folder.
        Raises `UsageError` for a bucket that is not the account's, and for a run that another
        cluster trains.
        """
        its = self._bucket_of(name, bucket)
        if bucket:
            account.check_bucket(self.aws, bucket)
        found = stored_data.of(self.aws, its, name)
        for other in self.names():
            known = self.known(other) if other != name else None
            if known is not None and known.spec.run == found.run.cluster:
                raise UsageError(
                    f"--delete-data: the cluster {other} trains the run {known.spec.run}: end it "
                    f"first with `spotelastic down {other}`"
                )
        return found

    def data_of(self, name: str, bucket: str | None = None) -> tuple[str, str]:
        """Return the run whose checkpoints `down` can delete, and their URL."""
        found, regions = self.data(name, bucket), self.other_regions(name)
        url = found.url + (f", and those in {', '.join(regions)}" if regions else "")
        return found.run.cluster, url

    def other_regions(self, name: str) -> tuple[str, ...]:
        """Return the other regions in which the job has clusters, as its description names them."""
        with contextlib.suppress(OtherVersion):
            its = self.known(name) or self.left(name)
            return () if its is None else other_regions(its.spec, self.aws.region)
        return ()

    def known_name(self, name: str | None, *, keep_data: bool = True) -> str:
        """Return the name, or that of the only cluster, if there is something to take down."""
        if name is None:
            return self.only_one()
        if cloudformation.describe(self.aws, Names(name).stack) is None and (
            name not in self.names() and keep_data and not teardown.has_secrets(self.aws, name)
        ):
            self.cluster(name)  # raises an error that lists the clusters
        return name

    def control_failure(self, name: str, waited: float) -> str:
        """Return why the control nodes of a new cluster will not come; empty while they may."""
        return control_boot.hopeless(control_boot.look(self.aws, name), waited)

    def note_worked(self, cluster: ShownCluster) -> None:
        """Note that a new cluster works here."""
        if self.costs_money and isinstance(cluster, ClusterRecord):
            control_boot.note_worked(self.aws, cluster.bucket)

    def delete(
        self, name: str | None, say: Callable[[str], None], *, keep_data: bool, bucket: str | None
    ) -> None:
        """Take a cluster down, piece by piece, and tell what stays stored."""
        name = self.known_name(name, keep_data=keep_data)
        its = self._bucket_of(name, bucket)
        teardown.delete(name, bucket=its, keep_data=keep_data, say=say, aws=self.aws)
        say(f"{name} is gone")
        if self.costs_money and not self.names() and shared_network.look(self.aws) is not None:
            say(
                f"the network {SHARED_NETWORK} stays for the next `up`, and costs nothing; "
                "`spotelastic down --network` removes it"
            )
        with contextlib.suppress(OtherVersion):  # what it has left, only that version can tell
            if keep_data:
                if log_group.GroupOutput(self.aws, Names(name).log_group).streams():
                    kept = log_group.KEPT_DAYS
                    say(f"`spotelastic logs {name}` prints its output, kept for {kept} days")
                with refusable(lambda why: say(f"what it has stored is not known: {why}")):
                    self._tell_of_data(stored_data.of(self.aws, its, name), say)

    def allow(self, spec: JobSpec, nodes: int, say: Callable[[str], None]) -> None:
        """Let the cluster's groups have so many nodes. Raises `UsageError` if quotas forbid it."""
        if nodes > spec.settings.max_nodes:
            _check_quota(self.aws, spec, nodes, say)
        its = Names(spec.cluster)
        for group in (its.workers, its.on_demand):
            worker_groups.allow(self.aws, group, nodes)

    def check_spot(self, name: str, node: str) -> None:
        """Raise `UsageError` for a node of the cluster that AWS gives no notice."""
        found = {machine.id: machine for machine in autoscaling.instances(self.aws, name)}
        if node in found and not found[node].spot:
            raise UsageError(
                f"{node} is on-demand: AWS gives such instances no notice (use --kind loss)"
            )

    def remove_network(self, say: Callable[[str], None]) -> None:
        """Remove the network that clusters share. Raises `UsageError` while one is in it."""
        gone = shared_network.remove(self.aws, say)
        say(
            f"the network {SHARED_NETWORK} is gone"
            if gone
            else f"there is no network {SHARED_NETWORK} in {self.aws.region}"
        )

    def _tell_of_data(self, left: StoredData, say: Callable[[str], None]) -> None:
        """Tell what stays stored, and what that costs."""
        checkpoints, cached = left.size / 1e9, left.cached / 1e9
        kept = []
        if checkpoints:
            kept.append(f"its checkpoints stay in {left.url}: {_gigabytes(checkpoints)}")
        if cached >= WORTH_TELLING:
            kept.append(
                f"packages and code, which the next `up` reuses, stay in "
                f"{left.cluster.url('')}: {_gigabytes(cached)}"
            )
        bucket = left.cluster.bucket
        where = "" if bucket == self.bucket else f" --bucket {bucket}"
        if kept:
            kept.append(
                f"`spotelastic down {left.cluster.cluster} --delete-data{where}` deletes it all"
            )
            say("; ".join(kept))


def forward_pointer(cluster: ClusterRecord) -> ForwardPointer | None:
    """Return where the cluster's run was moved to; None if it was not."""
    return pointer_of(BucketObjects(cluster.aws, cluster.bucket, cluster.spec.run))


def pointer_of(run: BucketObjects) -> ForwardPointer | None:
    """Return where a run was moved to, by what it has left in this bucket; None if it was not."""
    data = run.get(f"{CHECKPOINTS}{LATEST}")
    with contextlib.suppress(msgspec.DecodeError):
        latest = None if data is None else decoded(data)
        return latest if isinstance(latest, ForwardPointer) else None
    return None


def _gigabytes(size: float) -> str:
    return f"{size:.2f} GB, about ${size * STORED:.2f} a month"


def _listed(name: str, cluster: ClusterRecord | None) -> ClusterSummary:
    if cluster is None:
        return ClusterSummary(name, "incomplete")
    if sleeps(cluster):
        return ClusterSummary(name, "asleep")
    return summary_of(cluster)


def configured(key: str) -> str | None:
    """Return the value that `up` would use in this folder without the flag."""
    return config_file.configured(key, Path(), os.environ)


def _check_quota(aws: Aws, spec: JobSpec, high: int, say: Callable[[str], None]) -> None:
    """Raise `UsageError` if the account's quota is too small for each type of the cluster.

    It is too small for a type if that many instances of it do not fit.
    """
    spot = spec.worker_group != Names(spec.cluster).on_demand
    wanted = high - spec.capacity.base if spot else high
    quotas = Quotas(aws, spec.cluster)
    kinds = instance_types.describe(aws, spec.instance_types)
    found = [(kind, quotas.told(kind.name, spot=spot)) for kind in kinds]
    if quotas.unknown:
        say(f"the quotas are not known: {quotas.unknown}")
    short = [(kind, left) for kind, left in found if left and left.instances(kind) < wanted]
    if found and len(short) == len(found):
        kind, left = max(short, key=lambda each: each[1].instances(each[0]))
        raise UsageError(f"--max {high}: {left.describe(kind, wanted)}")
