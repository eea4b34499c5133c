"""Records the lives of a cluster's etcd in the bucket, so that members can come back without disks.

etcd/generations/<n>   one life of the cluster's etcd, and the snapshot that it began with. Written
                       once, by the member that is first; the newest counts
etcd/members/<name>    what a member has: the newest generation that it ever took part in, and the
                       one that its disk holds. Written by the member, before it starts
etcd/snapshots/<time>  see `snapshots.py`
"""

from dataclasses import dataclass

import msgspec

from spotelastic.aws.messaging.bucket import BucketObjects

GENERATIONS = "etcd/generations/"
MEMBERS = "etcd/members/"


@dataclass(frozen=True, slots=True)
class Generation:
    number: int
    snapshot: str = ""
    """Name of the object that it begins with; without one it begins empty."""


@dataclass(frozen=True, slots=True)
class GenerationClaim:
    """Numbers of generations; 0 for none."""

    joined: int = 0
    holds: int = 0


@dataclass(frozen=True, slots=True)
class Generations:
    """The bucket's part of it. All raise `Unavailable` on trouble."""

    objects: BucketObjects

    def newest(self) -> Generation | None:
        names = self.objects.names(GENERATIONS)
        data = self.objects.get(names[-1]) if names else None
        return None if data is None else msgspec.json.decode(data, type=Generation)

    def number(self) -> int:
        """Of the newest, 0 for none: all that who follows has to know, for one call."""
        names = self.objects.names(GENERATIONS)
        return int(names[-1].removeprefix(GENERATIONS).removesuffix(".json")) if names else 0

    def open(self, generation: Generation) -> None:
        """Without effect where somebody else was first."""
        name = f"{GENERATIONS}{generation.number:06d}.json"
        self.objects.create(name, msgspec.json.encode(generation))

    def claims(self) -> dict[str, GenerationClaim]:
        """By member; of those that have ever put one."""
        found = {name: self.objects.get(name) for name in self.objects.names(MEMBERS)}
        return {
            name.removeprefix(MEMBERS).removesuffix(".json"): msgspec.json.decode(
                data, type=GenerationClaim
            )
            for name, data in found.items()
            if data is not None
        }

    def put(self, member: str, claim: GenerationClaim) -> None:
        self.objects.put(f"{MEMBERS}{member}.json", msgspec.json.encode(claim))
