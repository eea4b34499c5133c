"""Finds the clusters that commands act on, in the local cloud or an AWS account, and takes them
down."""

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import MEMBERS, Names
from spotelastic.aws.clusters import lifecycle, stored_data, teardown
from spotelastic.aws.clusters.lifecycle import Cluster
from spotelastic.aws.clusters.stored_data import StoredData
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.compute.prices import STORED
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.network import cloudformation
from spotelastic.aws.node import etcd_identity
from spotelastic.client import local_data
from spotelastic.client.config import config_file
from spotelastic.clock import wall
from spotelastic.cloud.bucket import USAGE
from spotelastic.controller.accounting.usage import Usage, closed, cost
from spotelastic.errors import EnvironmentFailure, OtherVersion, UsageError
from spotelastic.local import cloud as local
from spotelastic.local import joining
from spotelastic.local.cloud import CloudInfo
from spotelastic.local.joining import CloudUse
from spotelastic.model.progress import ClusterSummary, Cost, Status
from spotelastic.wrapping import note

READ_TIMEOUT = 10.0
"""Seconds that a command waits for one answer."""
WORTH_TELLING = 0.005
"""Smallest size, in GB, whose cost is worth reporting."""


GONE = "the local cloud has ended, and its clusters with it"


class CloudEnded(EnvironmentFailure):
    """The local cloud has ended, with all its clusters."""


_used: CloudInfo | None = None
"""The local cloud that this command uses."""


@dataclass(frozen=True, slots=True)
class CloudTarget:
    """An account, real or local, with its clusters."""

    aws: Aws
    cloud: CloudInfo | None
    """The local cloud; None on AWS."""
    use: CloudUse | None = None
    """This command's use of the local cloud, which keeps it alive."""

    @classmethod
    def find(cls, wish: bool | None, region: str | None = None) -> "CloudTarget":
        """Return the local cloud or AWS. Raises `UsageError` if there is none.

        `wish`: True means the local cloud, False AWS, None the local cloud if one runs. `region`
        is for AWS. By default it is what a variable or the file in this folder says, else what
        AWS's configuration says.
        """
        cloud = None if wish is False else local.find()
        if cloud is not None:
            if region is not None:
                note(
                    f"note: --region {region} has no effect: this command acts on the local "
                    "cloud; add --aws for AWS"
                )
            return cls.of(cloud)
        if wish:
            raise UsageError(
                "no local cloud is running: start one with `spotelastic up --local --detach SCRIPT`"
            )
        if wish is None and not aws_is_configured():
            raise UsageError(
                "no local cloud is running and no AWS account is configured: start a local one "
                "with `spotelastic up --local --detach SCRIPT`, or set AWS_PROFILE"
            )
        return cls(Aws(region or _configured_region(), read_timeout=READ_TIMEOUT), None)

    @classmethod
    def of(cls, cloud: CloudInfo) -> "CloudTarget":
        """Return the target for a running local cloud."""
        global _used
        _used = cloud
        # boto3 is told through the environment, as in the instances: one way for both clouds.
        os.environ.update(local.environment(cloud))
        return cls(Aws(cloud.region, read_timeout=READ_TIMEOUT), cloud)

    def check(self) -> None:
        """Raise `CloudEnded` if the local cloud has ended."""
        if self.cloud is not None and local.find() != self.cloud:
            raise CloudEnded(GONE)

    @property
    def where_to_look(self) -> str:
        """Where the user can see why nodes do not start."""
        if self.cloud is None:
            return "see the system logs of its instances in the EC2 console"
        return f"see {self.cloud.folder}/instances/*/console.log"

    def names(self) -> tuple[str, ...]:
        """Return the names of all clusters."""
        return lifecycle.all_names(self.aws)

    def listing(self) -> tuple[ClusterSummary, ...]:
        """Return a summary of every cluster."""
        return tuple(map(self._summary, self.names()))

    def _summary(self, name: str) -> ClusterSummary:
        try:
            return _listed(name, self.known(name))
        except OtherVersion:
            return ClusterSummary(name, "of another version")

    def known(self, name: str) -> Cluster | None:
        """Return the cluster of that name, or None."""
        return lifecycle.find(name, self.aws)

    @property
    def bucket(self) -> str:
        """The bucket that all clusters of the account and region share."""
        return account.default_bucket(self.aws)

    def cluster(self, name: str | None) -> Cluster:
        """Return the cluster of that name, or the only one there is. Raises `UsageError`."""
        if name is None:
            name = self._only_one()
        found = lifecycle.find(Names(name).cluster, self.aws)
        if found is None:
            names = self.names()
            if name in names:
                raise UsageError(self._left_of(name))
            others = f"; the clusters are: {', '.join(names)}" if names else ""
            raise UsageError(f"there is no cluster named {name}{others}")
        return found

    def cluster_or_gone(self, name: str | None, note: Callable[[str], None]) -> Cluster:
        """Return the cluster, or one of that name that is gone and has left its last status.

        For a cluster that is gone, `note` is called, also with leftovers that still cost money.
        Only its stored objects can be used.
        """
        if name is not None and lifecycle.find(Names(name).cluster, self.aws) is None:
            gone = self._gone(name)
            if gone is not None:
                if name in self.names():
                    note(self._left_of(name))
                note(f"{name} is gone: this is its last report")
                return gone
        return self.cluster(name)

    def _gone(self, name: str) -> Cluster | None:
        """Return a cluster that has ended, by its data in the configured or the shared bucket."""
        for bucket in (_configured("bucket"), self.bucket):
            job = BucketObjects(self.aws, bucket, name).job() if bucket else None
            if bucket and job is not None:
                return Cluster(self.aws, job, bucket)
        return None

    def _bucket_of(self, name: str, bucket: str | None) -> str:
        """Return the cluster's bucket: from its stack, the flag, or where its job lies."""
        its = Names(name)
        if not bucket and cloudformation.describe(self.aws, its.stack) is None:
            gone = self._gone(name)
            bucket = gone.bucket if gone is not None else None
        return teardown.bucket_of(self.aws, its, bucket or "")

    def _left_of(self, name: str) -> str:
        """Return what is left of a cluster that is incomplete, for people."""
        its = Names(name)
        names = (its.workers, its.on_demand, *map(its.control, MEMBERS))
        found = autoscaling.instances(self.aws, name)
        counts = {
            "stack": cloudformation.clusters(self.aws).count(name),
            "group": len(autoscaling.groups(self.aws, names)),
            "instance": sum(machine.state != "terminated" for machine in found),
            "disk": len(etcd_identity.disks(self.aws, name)),
        }
        left = [f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in counts.items() if n]
        return (
            f"{name} is incomplete; left of it: {', '.join(left) or 'parts that are just ending'}; "
            f"`spotelastic down {name}` removes it"
        )

    def _only_one(self) -> str:
        names = self.names()
        if len(names) > 1:
            raise UsageError(f"there are several clusters; name one: {', '.join(names)}")
        if not names:
            raise UsageError(
                "there is no cluster: start one with `spotelastic up SCRIPT`, or name one that is "
                "gone to see its status, events or report"
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

    def down(
        self,
        name: str | None,
        say: Callable[[str], None],
        *,
        keep_data: bool = True,
        bucket: str | None = None,
    ) -> None:
        """Take one cluster down; with its last cluster the local cloud ends too."""
        if self.cloud is None:
            self._down(name, say, keep_data=keep_data, bucket=bucket)
            return
        use = joining.enter()
        if use is None:
            raise CloudEnded(GONE)
        with contextlib.closing(use):
            if keep_data:
                self._down_here(name, use, say)
            else:
                self._down(name, say, keep_data=False, bucket=bucket)
                use.leave(say, down=True)

    def _down_here(self, name: str | None, use: CloudUse, say: Callable[[str], None]) -> None:
        """Take a local cluster down.

        The local cloud ends with its last cluster, unless another command uses it.
        """
        if name is None and not self.names():
            if not use.leave(say, down=True):
                say("there is no cluster, but another command uses the local cloud, so it stays")
            return
        name = self._known_name(name)
        use.works_on(name)
        use.leave(say, down=True)
        say(f"{name} is gone")
        local_data.tell(name, say)

    def _known_name(self, name: str | None, *, keep_data: bool = True) -> str:
        if name is None:
            return self._only_one()
        if name not in self.names() and keep_data and not teardown.has_secrets(self.aws, name):
            self.cluster(name)  # raises an error that lists the clusters
        return name

    def _down(
        self, name: str | None, say: Callable[[str], None], *, keep_data: bool, bucket: str | None
    ) -> None:
        name = self._known_name(name, keep_data=keep_data)
        its = self._bucket_of(name, bucket)
        teardown.delete(name, bucket=its, keep_data=keep_data, say=say, aws=self.aws)
        say(f"{name} is gone")
        with contextlib.suppress(OtherVersion):  # what it has left, only that version can tell
            if keep_data:
                self._tell_of_data(stored_data.of(self.aws, its, name), say)

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


def _gigabytes(size: float) -> str:
    return f"{size:.2f} GB, about ${size * STORED:.2f} a month"


def local_cloud_has_gone() -> bool:
    """Whether this command used a local cloud that no longer answers.

    A local cloud that is just ending still has its process, but accepts no connections.
    """
    if _used is None:
        return False
    if local.find() != _used:
        return True
    address = urlsplit(_used.endpoint)
    try:
        socket.create_connection((address.hostname or "", address.port or 80), 5.0).close()
    except OSError:
        return True
    return False


def status_of(cluster: Cluster) -> Status:
    """Return the published status of a cluster; before there is one, that its nodes boot."""
    status = cluster.objects.status()
    if status is None:
        return Status(cluster.name, "pending", cluster.spec.created_at, reason="nodes are booting")
    return status


def cost_of(cluster: Cluster) -> Cost:
    """Return the costs, from what the leading controller has recorded of every instance.

    For a cluster that is gone, up to its last report: no controller saw its instances end.
    """
    objects = cluster.objects
    data = objects.get(USAGE)
    bill = {item.instance: item for item in msgspec.json.decode(data or b"[]", type=list[Usage])}
    if lifecycle.find(cluster.name, cluster.aws) is None:
        bill = closed(bill, status_of(cluster).at)
    limit = cluster.spec.capacity.max_cost
    return cost(cluster.name, bill, objects.report(), wall(), limit)


def _listed(name: str, cluster: Cluster | None) -> ClusterSummary:
    if cluster is None:
        return ClusterSummary(name, "incomplete")
    status = status_of(cluster)
    workers = sum(node.role == "worker" and node.state != "gone" for node in status.nodes)
    return ClusterSummary(name, status.state, workers, status.step)


def _configured_region() -> str | None:
    """Return the configured region; None lets boto3 read AWS's configuration.

    boto3 reads all of it but `AWS_REGION`.
    """
    return _configured("region") or os.environ.get("AWS_REGION") or None


def _configured(key: str) -> str | None:
    """Return the value that `up` would use in this folder without the flag."""
    return config_file.configured(key, Path(), os.environ)


def aws_is_configured() -> bool:
    """Whether AWS credentials are configured."""
    import boto3

    return boto3.session.Session().get_credentials() is not None
