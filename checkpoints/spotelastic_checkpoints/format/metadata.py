"""Writes `.metadata`, the commit record, as torch.distributed.checkpoint reads it, without torch.

The same manifests give the same bytes, so that two daemons that both find a step complete write
identical records. Also marks a record as pinned, and recognises the tombstone that replaces it.
"""

import re
from collections.abc import Sequence
from operator import eq

from spotelastic_checkpoints.checksummed_json import checksum
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.format.opcodes import Emitter
from spotelastic_checkpoints.types import Item

NAME = ".metadata"
"""Name of the record in the step's folder."""
TOMBSTONE = b"spotelastic: this checkpoint was retired\n"
"""Replaces the commit record of a step that is collected, or that must never be committed."""

_DCP = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_DCP_VERSION = "1.0.0"

_MARK = b"spotelastic: "
_SEAL = _MARK + b"xxh3 %b\n"
_SEALED = re.compile(_SEAL % b"([0-9a-f]{16})" + rb"\Z")
"""The record's checksum. It stands behind the end of the pickle, which readers ignore. Records of
earlier versions have none.
"""
_PIN = _MARK + b"pinned\n"
"""Marks a commit that must not be collected. It stands behind the checksum."""


def is_pinned(data: bytes) -> bool:
    """Return whether the record is marked as pinned, or may be: its end is damaged."""
    return not (is_tombstone(data) or _is_bare(data) or _SEALED.search(data))


def pinned(data: bytes) -> bytes:
    """Return the record with the mark."""
    return data + _PIN


def unpinned(data: bytes) -> bytes:
    """Return the record as it was committed, without the mark."""
    return data.removesuffix(_PIN)


def agrees(data: bytes, record: bytes) -> bool:
    """Return whether a stored record says what this one says, pinned or not."""
    return _pickle(data) == _pickle(record)


def is_whole(data: bytes) -> bool:
    """Return whether the record is as it was written, as far as it has a checksum."""
    data = unpinned(data)
    found = _SEALED.search(data)
    if found is None:
        return _is_bare(data)
    return found[1] == checksum(data[: found.start()])


def _is_bare(data: bytes) -> bool:
    """Return whether nothing stands behind the pickle, as in earlier versions."""
    return data.endswith(b".") and _MARK not in data[-2 * len(_SEAL) - len(_PIN) :]


def _pickle(data: bytes) -> bytes:
    data = unpinned(data)
    found = _SEALED.search(data)
    return data[: found.start()] if found else data


def is_tombstone(data: bytes) -> bool:
    """Return whether this is a tombstone, also one that has lost some of its bytes.

    No commit record has more than a few bytes in common with it.
    """
    return bool(sum(map(eq, data, TOMBSTONE)) > len(TOMBSTONE) // 2)


def write(manifests: Sequence[Manifest]) -> bytes:
    """Return the pickle of a `Metadata` object over all items of all manifests, with a checksum."""
    manifests = sorted(manifests, key=lambda manifest: manifest.rank)
    by_name: dict[str, list[Item]] = {}
    for manifest in manifests:
        for item in manifest.items:
            by_name.setdefault(item.fqn, []).append(item)
    for chunks in by_name.values():
        chunks.sort(key=lambda item: item.offsets)
    indices = {
        item.key: number for chunks in by_name.values() for number, item in enumerate(chunks)
    }

    out = Emitter()
    out.new(_DCP, "Metadata")
    out.raw(b"}(")
    out.value("state_dict_metadata")
    out.raw(b"}(")
    for fqn in sorted(by_name):
        out.value(fqn)
        first, parts = by_name[fqn][0], [(item.offsets, item.sizes) for item in by_name[fqn]]
        out.again(_storage_type, first.dtype, first.shape, tuple(parts))
    out.raw(b"u")
    out.value("planner_data")
    out.value({fqn: by_name[fqn][0].path for fqn in sorted(by_name)})
    out.value("storage_data")
    out.raw(b"}(")
    for manifest in manifests:
        for shard in manifest.shards:
            for item in shard.items:
                _index(out, item, indices[item.key])
                _place(out, item, shard.name)
    out.raw(b"u")
    out.value("storage_meta")
    out.value(None)
    out.value("version")
    out.value(_DCP_VERSION)
    out.raw(b"u")
    out.build()
    data = out.done()
    return data + _SEAL % checksum(data)


def _storage_type(
    out: Emitter,
    dtype: str,
    shape: tuple[int, ...],
    chunks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    if not dtype:
        out.new(_DCP, "BytesStorageMetadata")
        return
    out.new(_DCP, "TensorStorageMetadata")
    out.raw(b"}(")
    out.value("properties")
    _properties(out, dtype)
    out.value("size")
    out.reduce("torch", "Size", shape)
    out.value("chunks")
    out.raw(b"](")
    for offsets, sizes in chunks:
        out.new(_DCP, "ChunkStorageMetadata")
        out.raw(b"}(")
        out.value("offsets")
        out.reduce("torch", "Size", offsets)
        out.value("sizes")
        out.reduce("torch", "Size", sizes)
        out.raw(b"u")
        out.build()
    out.raw(b"eu")
    out.build()


def _properties(out: Emitter, dtype: str) -> None:
    out.new(_DCP, "TensorProperties")
    out.raw(b"(")
    out.global_("torch", dtype)
    out.reduce("torch.serialization", "_get_layout", "torch.strided")
    out.value(False)
    out.reduce(_DCP, "_MEM_FORMAT_ENCODING", 0)
    out.value(False)
    out.raw(b"t")
    out.build()


def _index(out: Emitter, item: Item, number: int) -> None:
    out.again(_new_index)
    out.value(item.fqn)
    out.again(_chunk, item.offsets if item.is_tensor else None, number)


def _new_index(out: Emitter) -> None:
    out.new(_DCP, "MetadataIndex")
    out.raw(b"}(")
    out.value("fqn")


def _chunk(out: Emitter, offsets: tuple[int, ...] | None, number: int) -> None:
    out.value("offset")
    if offsets is None:
        out.value(None)
    else:
        out.reduce("torch", "Size", offsets)
    out.value("index")
    out.value(None if offsets is None else number)
    out.raw(b"u")
    out.build()


def _place(out: Emitter, item: Item, file: str) -> None:
    out.again(_file, file)
    out.value(item.offset)
    out.value("length")
    out.value(item.length)
    out.raw(b"u")
    out.build()


def _file(out: Emitter, file: str) -> None:
    out.new(_FILES, "_StorageInfo")
    out.raw(b"}(")
    out.value("relative_path")
    out.value(file)
    out.value("offset")
