"""What a cluster has stored, and the run that it trained: where, how much, and its end.

A run outlives its clusters, so that the two may lie in different folders of the bucket. The bucket
itself is never deleted: others' objects may be in it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.messaging.bucket import CHECKPOINTS, BucketObjects

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StoredData:
    cluster: BucketObjects
    """Code, job, status, report."""
    run: BucketObjects
    """Its checkpoints."""

    @property
    def url(self) -> str:
        """Of the checkpoints."""
        return self.run.url(CHECKPOINTS)

    @property
    def size(self) -> int:
        """Of the checkpoints, in bytes."""
        return self.run.size(CHECKPOINTS)

    @property
    def cached(self) -> int:
        """Of what the next `up` need not make again (packages, installations, code), in bytes."""
        return self.cluster.size("") - self.cluster.size(CHECKPOINTS)


def of(aws: Aws, bucket: str, cluster: str) -> StoredData:
    """Of a cluster that is there, or was; without a job its run has its own name."""
    its = BucketObjects(aws, bucket, cluster)
    job = its.job()
    return StoredData(its, BucketObjects(aws, bucket, job.run if job is not None else cluster))


def delete(data: StoredData, say: Say) -> None:
    """Checkpoints first: what tells the run's name goes last. May be run again at any point."""
    deleted = 0
    for objects, folder in ((data.run, CHECKPOINTS), (data.cluster, "")):
        say(f"deleting {objects.url(folder)}")
        objects.abort_uploads(folder)
        deleted += objects.delete_all(folder)
    if not deleted:
        say("nothing was there; a bucket of your own is named by --bucket")
