"""Locates, measures and deletes what a cluster and its run have stored in a bucket.

A run outlives its clusters, so the two may be in different folders of the bucket. The bucket itself
is never deleted: it may hold other objects.
"""

from collections.abc import Callable
from dataclasses import dataclass

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cloud.bucket import CHECKPOINTS

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StoredData:
    """The stored objects of a cluster and of the run that it trains."""

    cluster: BucketObjects
    """The cluster's objects: code, job, status, report."""
    run: BucketObjects
    """The run's checkpoints."""

    @property
    def url(self) -> str:
        """URL of the checkpoints."""
        return self.run.url(CHECKPOINTS)

    @property
    def size(self) -> int:
        """Bytes of the checkpoints."""
        return self.run.size(CHECKPOINTS)

    @property
    def cached(self) -> int:
        """Bytes of what the next `up` can reuse: packages, installations, code."""
        return self.cluster.size("") - self.cluster.size(CHECKPOINTS)


def of(aws: Aws, bucket: str, cluster: str) -> StoredData:
    """Return the data of a cluster that exists or existed.

    Without a job, its run has its own name.
    """
    its = BucketObjects(aws, bucket, cluster)
    job = its.job()
    return StoredData(its, BucketObjects(aws, bucket, job.run if job is not None else cluster))


def delete(data: StoredData, say: Say) -> None:
    """Delete everything; can be repeated at any point.

    Checkpoints go first, as the cluster's folder holds the run's name.
    """
    deleted = 0
    for objects, folder in ((data.run, CHECKPOINTS), (data.cluster, "")):
        say(f"deleting {objects.url(folder)}")
        objects.abort_uploads(folder)
        deleted += objects.delete_all(folder)
    if not deleted:
        say("nothing was found; if the cluster used your own bucket, name it with --bucket")
