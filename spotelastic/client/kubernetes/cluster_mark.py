"""The mark that the operator stores with a cluster: for which ElasticJob it was made."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterMark:
    """What the operator stores with a cluster."""

    uid: str = ""
    """Of the ElasticJob that the cluster was made for."""
    digest: str = ""
    """Of the job that it was given last; empty: it is not whole yet."""
    generation: int = 0
    """Of the specification that the job was read from."""

    def has(self, generation: int, digest: str) -> bool:
        """Whether the cluster was given the job of that digest, or of that generation."""
        return self.digest == digest or self.generation == generation
