"""Copies a commit from one bucket to another, possibly of another region, within S3.

No byte passes through this machine but manifests and the commit record. Large objects go in parts,
several at once. What is there already is not copied again, parts of unfinished uploads included.

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

from spotelastic.aws.base.clients import Rejected, calling
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.cloud.bucket import CHECKPOINTS
from spotelastic.errors import EnvironmentFailure

PART = 256 << 20
"""Bytes of a part. Objects up to this size are copied by one call."""
AT_ONCE = 16
"""Parts that are copied at the same time."""
OBJECTS_AT_ONCE = 8
"""Objects that are copied at the same time."""
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
    part: int = PART,
) -> None:
    """Copy the commit, or what is missing of it.

    Raises `DamagedSource` where an object of the commit is missing or has another size, and
    `EnvironmentFailure` where a copy is not like its source. Unfinished uploads stay after an
    error, so that the next call goes on from them; `give_up` removes them.
    """
    copies = _CommitCopy(source, target, progress, part)
    sizes = {f"{CHECKPOINTS}{name}": size for name, size in files.shards.items()}
    copies.all_of(sizes)
    small = [f"{CHECKPOINTS}{name}" for name in (*files.manifests, files.record)]
    for name in small[:-1]:
        copies.small(name)
    made_by = source.get(f"{CHECKPOINTS}{provenance.NAME}")
    if made_by is not None:
        target.put(f"{CHECKPOINTS}{provenance.NAME}", made_by)
    give_up(target, files.commit)
    copies.small(small[-1])


def copy_kept_files(source: BucketObjects, target: BucketObjects) -> None:
    """Copy the files that the script has kept: pieces first, and then the indexes that name them.

    What is there already is not copied again. Raises what `copy` raises.
    """
    copies = _CommitCopy(source, target, lambda _: None, PART)
    names = source.names(f"{CHECKPOINTS}{FOLDER}")
    indexes = [name for name in names if name.startswith(f"{CHECKPOINTS}{INDEXES}")]
    copies.all_of(dict.fromkeys(set(names) - set(indexes)))
    for name in indexes:
        copies.small(name)


def give_up(target: BucketObjects, commit: Commit) -> None:
    """Remove unfinished uploads of the commit, whose parts cost money."""
    target.abort_uploads(f"{CHECKPOINTS}{folder(commit)}/")


def drop(target: BucketObjects, commit: Commit) -> None:
    """Remove what was copied of the commit: its record first, so that nobody begins from it."""
    target.delete(f"{CHECKPOINTS}{folder(commit)}/{metadata.NAME}")
    give_up(target, commit)
    target.delete_all(f"{CHECKPOINTS}{folder(commit)}/")


class _CommitCopy:
    """One copy of a commit."""

    def __init__(
        self, source: BucketObjects, target: BucketObjects, progress: Progress, part: int
    ) -> None:
        self._source, self._target = source, target
        self._progress, self._part = progress, part
        self._s3 = target.aws.s3
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy")

    def all_of(self, sizes: Mapping[str, int | None]) -> None:
        """Copy these objects, of these sizes (None: any). On an error nothing further is begun."""
        objects = ThreadPoolExecutor(OBJECTS_AT_ONCE, thread_name_prefix="copies")
        try:
            jobs = [objects.submit(self._object, name, size) for name, size in sizes.items()]
            for job in jobs:
                job.result()
        finally:
            objects.shutdown(wait=True, cancel_futures=True)
            self._pool.shutdown(wait=True, cancel_futures=True)

    def small(self, name: str) -> None:
        """Copy an object through this machine, and read it back."""
        data = self._source.get(name)
        if data is None:
            raise DamagedSource(f"{self._source.url(name)} is missing: the checkpoint is damaged")
        if self._target.get(name) != data:
            self._target.put(name, data)
        if self._target.get(name) != data:
            raise EnvironmentFailure(f"{self._target.url(name)} is not what was written there")

    def _object(self, name: str, size: int | None) -> None:
        found = self._head(self._source, name)
        if size is None and found is not None:
            size = int(found["ContentLength"])
        if found is None or size is None or found["ContentLength"] != size:
            raise DamagedSource(
                f"{self._source.url(name)} does not have the {size} bytes of its manifest: the "
                "checkpoint is damaged"
            )
        there = self._head(self._target, name)
        if there is not None and _alike(found, there):
            self._progress(size)
            return
        if size > self._part:
            self._in_parts(name, found)
        else:
            with calling(f"copy {self._source.url(name)}"):
                self._s3.copy_object(
                    Bucket=self._target.bucket,
                    Key=_key(self._target, name),
                    CopySource=self._from(name),
                    CopySourceIfMatch=found["ETag"],
                )
            self._progress(size)
        there = self._head(self._target, name)
        if there is None or not _alike(found, there):
            raise EnvironmentFailure(
                f"{self._target.url(name)} is not like {self._source.url(name)}: move again"
            )

    def _in_parts(self, name: str, found: Mapping[str, Any]) -> None:
        size, key = int(found["ContentLength"]), _key(self._target, name)
        upload, done = self._upload(name)
        starts = range(0, size, self._part)

        def part(number: int, start: int) -> dict[str, Any]:
            end = min(start + self._part, size)
            if number not in done:
                with calling(f"copy {self._source.url(name)}"):
                    answer = self._s3.upload_part_copy(
                        Bucket=self._target.bucket,
                        Key=key,
                        UploadId=upload,
                        PartNumber=number,
                        CopySource=self._from(name),
                        CopySourceIfMatch=found["ETag"],
                        CopySourceRange=f"bytes={start}-{end - 1}",
                    )
                done[number] = answer["CopyPartResult"]["ETag"]
            self._progress(end - start)
            return {"PartNumber": number, "ETag": done[number]}

        jobs = [self._pool.submit(part, *each) for each in enumerate(starts, 1)]
        parts = [job.result() for job in jobs]
        with calling(f"copy {self._source.url(name)}"):
            self._s3.complete_multipart_upload(
                Bucket=self._target.bucket,
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )

    def _upload(self, name: str) -> tuple[str, dict[int, str]]:
        """Return an unfinished upload of an earlier copy with its parts, or a new one."""
        key, bucket = _key(self._target, name), self._target.bucket
        with calling(f"copy {self._source.url(name)}"):
            listed = self._s3.list_multipart_uploads(Bucket=bucket, Prefix=key)
            for upload in listed.get("Uploads", ()):
                if upload["Key"] == key:
                    pages = self._s3.get_paginator("list_parts").paginate(
                        Bucket=bucket, Key=key, UploadId=upload["UploadId"]
                    )
                    parts = [part for page in pages for part in page.get("Parts", ())]
                    return upload["UploadId"], {p["PartNumber"]: p["ETag"] for p in parts}
            made = self._s3.create_multipart_upload(Bucket=bucket, Key=key)
        return made["UploadId"], {}

    def _from(self, name: str) -> dict[str, str]:
        return {"Bucket": self._source.bucket, "Key": _key(self._source, name)}

    def _head(self, where: BucketObjects, name: str) -> dict[str, Any] | None:
        try:
            with calling(f"look at {where.url(name)}"):
                found: dict[str, Any] = where.aws.s3.head_object(
                    Bucket=where.bucket, Key=_key(where, name), ChecksumMode="ENABLED"
                )
                return found
        except Rejected as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket"):
                return None
            raise


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects are the same, as far as S3 tells: sizes, and checksums of the whole."""
    sums = one.get(f"Checksum{FULL}"), other.get(f"Checksum{FULL}")
    return one["ContentLength"] == other["ContentLength"] and (None in sums or sums[0] == sums[1])


def _key(where: BucketObjects, name: str) -> str:
    return f"{where.cluster}/{name}"
