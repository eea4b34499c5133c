"""The mark that the operator stores with a cluster: for which ElasticJob it was made."""

from dataclasses import dataclass

from spotelastic_checkpoints.decoders import from_json

from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.kubernetes.elastic_job import MARK


@dataclass(frozen=True, slots=True)
class ClusterMark:
    """What the operator stores with a cluster."""

    uid: str = ""
    """Of the ElasticJob that the cluster was made for."""
    digest: str = ""
    """Of the job that it was given last; empty: it is not whole yet."""
    generation: int = 0
    """Of the specification that the job was read from."""

    @classmethod
    def of(cls, stored: ClusterBucket) -> "ClusterMark | None":
        """Return the mark that is stored with a cluster; None: there is none."""
        data = stored.get(MARK)
        return None if data is None else from_json(data, cls)

    def has(self, generation: int, digest: str) -> bool:
        """Whether the cluster was given the job of that digest, or of that generation."""
        return self.digest == digest or self.generation == generation
