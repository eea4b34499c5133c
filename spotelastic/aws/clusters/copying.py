"""Copies a commit from one bucket to another, possibly of another region, within S3.

No byte passes through this machine but manifests and the commit record. Large objects go in parts,
several at once. Objects that are there already are not copied again.

Must never happen: a copy counts before it is whole. Shards are looked at, size and checksum, before
the manifests are copied, and these before the commit record, which makes the copy a commit.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from spotelastic_checkpoints import provenance
from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.files.kept import FOLDER, INDEXES
from spotelastic_checkpoints.format import manifest, metadata
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.types import Commit

from spotelastic.aws.base.clients import calling, passing
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cloud.bucket import CHECKPOINTS
from spotelastic.errors import EnvironmentFailure

PART = 256 << 20
"""Bytes of a part. Objects up to this size are copied by one call."""
AT_ONCE = 4
"""Objects that are copied at the same time, and parts of each."""
FULL = "CRC64NVME"
"""The checksum that S3 computes of whole objects, also while it copies them."""

Progress = Callable[[int], None]
"""Called with the number of further bytes that are copied, from several threads."""


class DamagedSource(EnvironmentFailure):
    """What is to be copied is not whole."""


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """The objects of a commit, by their names below the run's checkpoints."""

    commit: Commit
    shards: Mapping[str, int]
    """Sizes by name."""
    manifests: tuple[str, ...]

    @property
    def record(self) -> str:
        """Name of the commit record."""
        return f"{folder(self.commit)}/{metadata.NAME}"

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(self.shards.values())


def files_of(commit: Commit, manifests: Sequence[Manifest]) -> CommitFiles:
    """Return the objects that a commit consists of, by its manifests (pure)."""
    place = folder(commit)
    return CommitFiles(
        commit,
        {f"{place}/{s.name}": s.nbytes for content in manifests for s in content.shards},
        tuple(f"{place}/{manifest.manifest_name(content.rank)}" for content in manifests),
    )


def is_copied(target: BucketObjects, commit: Commit) -> bool:
    """Return whether the commit is in the target: its record is written last."""
    record = target.get(f"{CHECKPOINTS}{folder(commit)}/{metadata.NAME}")
    return record is not None and not metadata.is_tombstone(record)


def copy(
    source: BucketObjects,
    target: BucketObjects,
    files: CommitFiles,
    progress: Progress,
) -> None:
    """Copy the commit, or what is missing of it.

    Raises `DamagedSource` where an object of the commit is missing or has another size, and
    `EnvironmentFailure` where a copy is not like its source.
    """
    sizes = {f"{CHECKPOINTS}{name}": size for name, size in files.shards.items()}
    _copy_all(source, target, sizes, progress)
    for name in files.manifests:
        _copy_small(source, target, f"{CHECKPOINTS}{name}")
    made_by = source.get(f"{CHECKPOINTS}{provenance.NAME}")
    if made_by is not None:
        target.put(f"{CHECKPOINTS}{provenance.NAME}", made_by)
    _give_up(target, files.commit)
    _copy_small(source, target, f"{CHECKPOINTS}{files.record}")


def copy_kept_files(source: BucketObjects, target: BucketObjects) -> None:
    """Copy the files that the script has kept: pieces first, and then the indexes that name them.

    What is there already is not copied again. Raises what `copy` raises.
    """
    names = source.names(f"{CHECKPOINTS}{FOLDER}")
    indexes = [name for name in names if name.startswith(f"{CHECKPOINTS}{INDEXES}")]
    _copy_all(source, target, dict.fromkeys(set(names) - set(indexes)), lambda _: None)
    for name in indexes:
        _copy_small(source, target, name)


def _give_up(target: BucketObjects, commit: Commit) -> None:
    """Remove unfinished uploads of the commit, whose parts cost money."""
    target.abort_uploads(f"{CHECKPOINTS}{folder(commit)}/")


def drop(target: BucketObjects, commit: Commit) -> None:
    """Remove what was copied of the commit: its record first, so that nobody begins from it."""
    target.delete(f"{CHECKPOINTS}{folder(commit)}/{metadata.NAME}")
    _give_up(target, commit)
    target.delete_all(f"{CHECKPOINTS}{folder(commit)}/")


def _copy_all(
    source: BucketObjects,
    target: BucketObjects,
    sizes: Mapping[str, int | None],
    progress: Progress,
) -> None:
    """Copy these objects, of these sizes (None: any). On an error nothing further is begun."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copies") as pool:
        for _ in pool.map(lambda name: _copy(source, target, name, sizes[name], progress), sizes):
            pass


def _copy(
    source: BucketObjects, target: BucketObjects, name: str, size: int | None, progress: Progress
) -> None:
    from boto3.s3.transfer import TransferConfig

    found = _head(source, name)
    if found is None or size not in (None, found["ContentLength"]):
        raise DamagedSource(
            f"{source.url(name)} does not have the {size} bytes of its manifest: the checkpoint "
            "is damaged"
        )
    there = _head(target, name)
    if there is not None and _alike(found, there):
        progress(found["ContentLength"])
        return
    with calling(f"copy {source.url(name)}"):
        target.aws.s3.copy(
            {"Bucket": source.bucket, "Key": _key(source, name)},
            target.bucket,
            _key(target, name),
            ExtraArgs={"CopySourceIfMatch": found["ETag"]},
            Callback=progress,
            SourceClient=source.aws.s3,
            Config=TransferConfig(PART, AT_ONCE, PART),
        )
    there = _head(target, name)
    if there is None or not _alike(found, there):
        raise EnvironmentFailure(f"{target.url(name)} is not like {source.url(name)}: move again")


def _copy_small(source: BucketObjects, target: BucketObjects, name: str) -> None:
    """Copy an object through this machine, and read it back."""
    data = source.get(name)
    if data is None:
        raise DamagedSource(f"{source.url(name)} is missing: the checkpoint is damaged")
    if target.get(name) != data:
        target.put(name, data)
    if target.get(name) != data:
        raise EnvironmentFailure(f"{target.url(name)} is not what was written there")


def _head(where: BucketObjects, name: str) -> dict[str, Any] | None:
    with passing("404", "NoSuchKey", "NoSuchBucket"), calling(f"look at {where.url(name)}"):
        found: dict[str, Any] = where.aws.s3.head_object(
            Bucket=where.bucket, Key=_key(where, name), ChecksumMode="ENABLED"
        )
        return found
    return None


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects are the same, as far as S3 tells: sizes, and checksums of the whole."""
    sums = one.get(f"Checksum{FULL}"), other.get(f"Checksum{FULL}")
    return one["ContentLength"] == other["ContentLength"] and (None in sums or sums[0] == sums[1])


def _key(where: BucketObjects, name: str) -> str:
    return f"{where.cluster}/{name}"
