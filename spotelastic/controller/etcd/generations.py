"""Records the generations of a cluster's etcd in the bucket, for members that lost their disks.

etcd/generations/<n>   one life of the cluster's etcd, and the snapshot that it began with.
                       Written once, by the first member; the newest generation counts
etcd/members/<name>    what a member has: the newest generation that it took part in, and the
                       one that its disk holds. Written by the member, before it starts
etcd/snapshots/<time>  see `snapshots.py`
"""

from dataclasses import dataclass

import msgspec
from spotelastic_checkpoints.decoders import from_json

from spotelastic.cloud.bucket import ClusterBucket

GENERATIONS = "etcd/generations/"
MEMBERS = "etcd/members/"
SNAPSHOTS = "etcd/snapshots/"


@dataclass(frozen=True, slots=True)
class Generation:
    number: int
    snapshot: str = ""
    """Name of the snapshot that the generation began with; empty: it began without data."""


@dataclass(frozen=True, slots=True)
class GenerationClaim:
    """The newest generation that a member took part in, and the one on its disk; 0: none."""

    joined: int = 0
    holds: int = 0


@dataclass(frozen=True, slots=True)
class Generations:
    """Reads and writes these objects.

    Every method raises `Unavailable` if the bucket does not answer.
    """

    objects: ClusterBucket

    def newest(self) -> Generation | None:
        names = self.objects.names(GENERATIONS)
        data = self.objects.get(names[-1]) if names else None
        return None if data is None else from_json(data, Generation)

    def number(self) -> int:
        """Return the number of the newest generation, with a single request; 0: none."""
        names = self.objects.names(GENERATIONS)
        return int(names[-1].removeprefix(GENERATIONS).removesuffix(".json")) if names else 0

    def open(self, generation: Generation) -> None:
        """Record a generation, unless another member was first."""
        name = f"{GENERATIONS}{generation.number:06d}.json"
        self.objects.create(name, msgspec.json.encode(generation))

    def claims(self) -> dict[str, GenerationClaim]:
        """Return the claims of the members that have written one, by member."""
        found = {name: self.objects.get(name) for name in self.objects.names(MEMBERS)}
        return {
            name.removeprefix(MEMBERS).removesuffix(".json"): from_json(data, GenerationClaim)
            for name, data in found.items()
            if data is not None
        }

    def put(self, member: str, claim: GenerationClaim) -> None:
        self.objects.put(f"{MEMBERS}{member}.json", msgspec.json.encode(claim))
