"""Defines the manifest of a rank: the JSON file that lists its shards, their items and checksums.

Also decides whether the manifests of all ranks together make a complete checkpoint.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
import xxhash

from spotelastic_checkpoints import checksummed_json
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.protocol_version import FORMAT, of_newer_format
from spotelastic_checkpoints.types import Item

FOLDER = "manifests"
"""Folder of the manifests. Listing it, and not the shards, tells whether a step is complete."""
BLOCK = 1 << 18
"""Bytes that have a checksum of their own, so that a part of an item can be verified alone."""
DIGITS = 16
"""Hex digits of a checksum."""


class Shard(msgspec.Struct, frozen=True):
    """A file of a checkpoint, with the checksum of every item in it."""

    name: str
    """Name of the file within the step's folder."""
    nbytes: int
    items: tuple[Item, ...]


class Manifest(msgspec.Struct, frozen=True):
    """What one rank uploaded of a checkpoint."""

    version: int
    """Version of the manifest's format."""
    epoch: int
    step: int
    incarnation: str
    """Incarnation of the round that sealed the save."""
    layout: str
    """Hash of the layout."""
    rank: int
    world_size: int
    chunks: int
    """Number of items that the files of all ranks hold together."""
    shards: tuple[Shard, ...]

    @property
    def nbytes(self) -> int:
        """Total size of the rank's shards."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def items(self) -> Iterator[Item]:
        """All items of all shards."""
        return (item for shard in self.shards for item in shard.items)


def blocks(item: Item) -> Iterator[tuple[int, int]]:
    """Yield where each block of an item begins and ends, counted from the item's start.

    Blocks are counted from a tensor's first element, so that halves of a tensor are whole blocks.
    """
    prefix = item.length - encoding.nbytes(item.dtype, item.sizes) if item.is_tensor else 0
    start = 0
    while start < item.length:
        end = min((start or prefix) + BLOCK, item.length)
        yield start, end
        start = end


def checksummed(item: Item, data: memoryview) -> Item:
    """Return the item with the checksums of its bytes, which are `data`."""
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
    """Return the name of a rank's file, as torch.distributed.checkpoint names it."""
    return f"{shard_prefix(rank)}{number}.distcp"


def shard_prefix(rank: int) -> str:
    """Return what the names of all files of a rank begin with."""
    return f"__{rank}_"


def manifest_name(rank: int) -> str:
    """Return the name of a rank's manifest within the step's folder."""
    return f"{FOLDER}/{rank}.json"


def rank_of(name: str) -> int | None:
    """Return the rank whose manifest has this name; None where it is no manifest."""
    middle = name.removeprefix(f"{FOLDER}/").removesuffix(".json")
    return int(middle) if name == f"{FOLDER}/{middle}.json" and middle.isdigit() else None


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest as JSON that ends with a checksum of itself."""
    return checksummed_json.encode(manifest)


def decode(data: bytes, name: str) -> Manifest:
    """Decode a manifest.

    Raises `RestoreFailed`, with `name`, where it is damaged or of a newer format.
    """
    try:
        content = checksummed_json.decode(data, Manifest)
    except msgspec.MsgspecError as error:
        reason = of_newer_format(data, name) or f"{name} is damaged: {error}"
        raise RestoreFailed(reason) from None
    if content.version > FORMAT:
        raise RestoreFailed(of_newer_format(data, name))
    # Only manifests without a checksum can come to this.
    if unknown := {item.dtype for item in content.items} - {*encoding.ITEM_SIZES, ""}:
        raise RestoreFailed(f"{name} is damaged: there is no dtype {min(unknown)}")
    return content


def is_readable(data: bytes) -> bool:
    """Return whether `decode` returns something."""
    with suppress(RestoreFailed):
        decode(data, "")
        return True
    return False


def complaint(manifests: Sequence[Manifest]) -> str:
    """Return why these manifests do not make a checkpoint; empty where they do."""
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
