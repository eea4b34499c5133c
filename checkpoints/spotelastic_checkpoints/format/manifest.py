"""Pure: what stands beside the shards, one JSON file per rank, and when a step is complete."""

import math
from collections.abc import Iterator, Sequence

import msgspec
import xxhash

from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.types import Item

VERSION = 1
FOLDER = "manifests"
"""Beside the shards: whoever looks whether a step is complete lists no more than it has ranks."""
BLOCK = 1 << 18
"""Bytes that a checksum of its own covers, so that a part of an item can be verified alone."""
DIGITS = 16
"""Of a checksum."""


class Shard(msgspec.Struct, frozen=True):
    """A file, and every item in it with a checksum."""

    name: str
    nbytes: int
    items: tuple[Item, ...]


class Manifest(msgspec.Struct, frozen=True):
    """Rank `rank`'s share of a checkpoint."""

    version: int
    epoch: int
    step: int
    incarnation: str
    """Of the round that sealed it."""
    layout: str
    rank: int
    world_size: int
    chunks: int
    """Items that all ranks' files hold together."""
    shards: tuple[Shard, ...]

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    @property
    def items(self) -> Iterator[Item]:
        return (item for shard in self.shards for item in shard.items)


def blocks(item: Item) -> Iterator[tuple[int, int]]:
    """Where the parts of an item that are verified alone begin and end, from the item's start.

    Counted from a tensor's first element, so that halves of it are blocks and no more.
    """
    prefix = item.length - encoding.nbytes(item.dtype, item.sizes) if item.is_tensor else 0
    start = 0
    while start < item.length:
        end = min((start or prefix) + BLOCK, item.length)
        yield start, end
        start = end


def checksummed(item: Item, data: memoryview) -> Item:
    """With the checksums of its bytes, which are `data`; its length is the true one."""
    bounds = list(blocks(item))
    if len(bounds) < 2:
        return msgspec.structs.replace(item, checksum=xxhash.xxh3_64_hexdigest(data))
    whole, parts = xxhash.xxh3_64(), []
    for start, end in bounds:
        block = data[start:end]
        whole.update(block)
        parts.append(xxhash.xxh3_64_hexdigest(block))
    return msgspec.structs.replace(item, checksum=whole.hexdigest(), blocks="".join(parts))


def shard_name(rank: int, number: int) -> str:
    """The rank's file, named as torch.distributed.checkpoint does."""
    return f"{shard_prefix(rank)}{number}.distcp"


def shard_prefix(rank: int) -> str:
    """What all the rank's files begin with."""
    return f"__{rank}_"


def manifest_name(rank: int) -> str:
    return f"{FOLDER}/{rank}.json"


def rank_of(name: str) -> int | None:
    """The rank whose manifest has this name; None where it is not a manifest's."""
    middle = name.removeprefix(f"{FOLDER}/").removesuffix(".json")
    return int(middle) if name == f"{FOLDER}/{middle}.json" and middle.isdigit() else None


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(data: bytes, name: str) -> Manifest:
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise RestoreFailed(f"{name} is not a manifest of ours: {error}") from None


def complaint(manifests: Sequence[Manifest]) -> str:
    """Why these manifests do not make a checkpoint; empty where they do."""
    if not manifests:
        return "there is no manifest"
    first = manifests[0]
    ranks = {manifest.rank for manifest in manifests}
    missing = set(range(first.world_size)) - ranks
    if missing:
        return f"the manifest of rank {min(missing)} is missing"
    for manifest in manifests:
        if (manifest.layout, manifest.incarnation) != (first.layout, first.incarnation):
            return f"ranks {first.rank} and {manifest.rank} saved different states"
    volumes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for manifest in manifests:
        for item in manifest.items:
            if item.key in seen:
                return f"{item.fqn} at {item.offsets} was written twice"
            seen.add(item.key)
            volumes[item.fqn] = volumes.get(item.fqn, 0) + math.prod(item.sizes)
            shapes[item.fqn] = item.shape
    if len(seen) != first.chunks:
        return f"{len(seen)} of {first.chunks} items were written"
    for fqn, shape in shapes.items():
        if volumes[fqn] != math.prod(shape):
            return f"{fqn} covers {volumes[fqn]} of {math.prod(shape)} elements"
    return ""
