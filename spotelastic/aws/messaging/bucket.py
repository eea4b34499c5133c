"""Reads and writes the objects of a cluster in its bucket: everything under `<cluster>/`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.errors import EnvironmentFailure, OtherVersion, Unavailable
from spotelastic.model.job import JobSpec
from spotelastic.model.progress import Event, Point, Report, Status
from spotelastic.model.protocol import keeping_unknown, unfit

CHECKPOINTS = "checkpoints/"
JOB = "job.json"
STATUS = "status.json"
EVENTS = "events.jsonl"
CURVE = "curve.json"
REPORT = "report.json"
USAGE = "usage.json"
STOPPING = "stopping"
"""An empty object that exists while, and after, the cluster is being taken down."""

TRIES = 20
"""Attempts to change an object that others change too."""

T = TypeVar("T")
_ABSENT = frozenset({"NoSuchKey", "NoSuchBucket", "404"})
_OVERTAKEN = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"})
"""S3's answers to a conditional write that another writer was faster with."""


@dataclass(frozen=True, slots=True)
class BucketObjects:
    """The objects of one cluster.

    Reads return None for a missing object. All methods raise `Unavailable` if S3 does not answer.
    """

    aws: Aws
    bucket: str
    cluster: str

    def url(self, name: str) -> str:
        """Return the object's URL."""
        return f"s3://{self.bucket}/{self.cluster}/{name}"

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        found = self._read(name)
        return None if found is None else found[0]

    def _read(self, name: str) -> tuple[bytes, str] | None:
        """Return the object and its version (S3's ETag)."""
        try:
            with calling(f"read {self.url(name)}"):
                answer = self.aws.s3.get_object(Bucket=self.bucket, Key=self._key(name))
                return answer["Body"].read(), answer["ETag"]
        except Rejected as error:
            if error.code in _ABSENT:
                return None
            raise

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        """Write an object."""
        with calling(f"write {self.url(name)}"):
            self.aws.s3.put_object(Bucket=self.bucket, Key=self._key(name), Body=data)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; return False if it exists. Of several creators one succeeds."""
        return self._put_if("create", name, data, IfNoneMatch="*")

    def _put_if(self, what: str, name: str, data: bytes, **condition: str) -> bool:
        """Write under a condition; return False if it does not hold."""
        try:
            with calling(f"{what} {self.url(name)}"):
                self.aws.s3.put_object(
                    Bucket=self.bucket, Key=self._key(name), Body=data, **condition
                )
        except Rejected as error:
            if error.code in _OVERTAKEN:
                return False
            raise
        return True

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all objects with this prefix, in order."""
        with calling(f"list {self.url(prefix)}"):
            pages = self.aws.s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._key(prefix)
            )
            keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return tuple(sorted(key.removeprefix(self._key("")) for key in keys))

    def upload(self, name: str, file: Path) -> None:
        """Upload a large file in parts."""
        from boto3.exceptions import S3UploadFailedError

        with calling(f"write {self.url(name)}"):
            try:
                self.aws.s3.upload_file(str(file), self.bucket, self._key(name))
            except S3UploadFailedError as error:
                raise error.__context__ or error from None  # the error that AWS returned

    def download(self, name: str, file: Path) -> None:
        """Download a large object into a file."""
        with calling(f"read {self.url(name)}"):
            self.aws.s3.download_file(self.bucket, self._key(name), str(file))

    def has(self, name: str) -> bool:
        """Whether the object exists."""
        try:
            with calling(f"look for {self.url(name)}"):
                self.aws.s3.head_object(Bucket=self.bucket, Key=self._key(name))
        except Rejected as error:
            if error.code in _ABSENT:
                return False
            raise
        return True

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is not an error."""
        with calling(f"delete {self.url(name)}"):
            self.aws.s3.delete_object(Bucket=self.bucket, Key=self._key(name))

    def size(self, folder: str) -> int:
        """Return the bytes below `folder`, e.g. "checkpoints/"; 0 if there is no bucket."""
        try:
            with calling(f"list {self.url(folder)}"):
                pages = self.aws.s3.get_paginator("list_objects_v2").paginate(
                    Bucket=self.bucket, Prefix=self._key(folder)
                )
                return sum(item["Size"] for page in pages for item in page.get("Contents", ()))
        except Rejected as error:
            if error.code in _ABSENT:
                return 0
            raise

    def delete_all(self, prefix: str = "") -> int:
        """Delete every object below `prefix`, by default all; return their number."""
        deleted = 0
        try:
            with calling(f"delete {self.url(prefix)}"):
                pages = self.aws.s3.get_paginator("list_objects_v2")
                for page in pages.paginate(Bucket=self.bucket, Prefix=self._key(prefix)):
                    keys = [{"Key": item["Key"]} for item in page.get("Contents", ())]
                    if keys:
                        answer = self.aws.s3.delete_objects(
                            Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True}
                        )
                        self._check_deleted(answer.get("Errors", ()))
                    deleted += len(keys)
        except Rejected as error:
            if error.code not in _ABSENT:
                raise
        return deleted

    def _check_deleted(self, errors: Sequence[Mapping[str, str]]) -> None:
        """Raise for objects that S3 did not delete: it answers with success if it deleted some."""
        for error in errors[:1]:
            url = f"s3://{self.bucket}/{error['Key']}"
            raise Rejected(f"cannot delete {url}: {error['Message']}", error["Code"])

    def abort_uploads(self, prefix: str) -> None:
        """Abort unfinished multipart uploads below `prefix`, whose parts cost money."""
        try:
            with calling(f"end unfinished uploads in {self.url(prefix)}"):
                pages = self.aws.s3.get_paginator("list_multipart_uploads").paginate(
                    Bucket=self.bucket, Prefix=self._key(prefix)
                )
                for upload in [item for page in pages for item in page.get("Uploads", ())]:
                    self.aws.s3.abort_multipart_upload(
                        Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        except Rejected as error:
            if error.code not in (*_ABSENT, "NoSuchUpload"):  # another process has ended it
                raise

    # -- the objects that the laptop reads -------------------------------------------------------

    def job(self) -> JobSpec | None:
        """Return the description of the cluster's job, or None."""
        return self._decoded(JOB, JobSpec)

    def change_job(self, change: Callable[[JobSpec], JobSpec]) -> JobSpec:
        """Change the job's description, keeping what others write at the same time.

        `change` may be called several times, and may refuse by raising. Raises `EnvironmentFailure`
        if there is no job.
        """
        for _ in range(TRIES):
            found = self._read(JOB)
            if found is None:
                raise EnvironmentFailure(f"{self.url(JOB)} is missing: {self.cluster} has no job")
            data, version = found
            changed = change(self._decode(JOB, data, JobSpec))
            if self._put_if("change", JOB, keeping_unknown(data, changed), IfMatch=version):
                return changed
        raise Unavailable(f"cannot change {self.url(JOB)}: other processes keep changing it")

    def status(self) -> Status | None:
        """Return the published status, or None."""
        return self._decoded(STATUS, Status)

    def report(self) -> Report | None:
        """Return the published report, or None."""
        return self._decoded(REPORT, Report)

    def curve(self) -> list[Point]:
        """Return the points of the loss curve."""
        return self._decoded(CURVE, list[Point]) or []

    def events(self) -> list[Event]:
        """Return all events so far."""
        data = self.get(EVENTS) or b""
        return [msgspec.json.decode(line, type=Event) for line in data.splitlines() if line]

    def _decoded(self, name: str, kind: type[T]) -> T | None:
        data = self.get(name)
        return None if data is None else self._decode(name, data, kind)

    def _decode(self, name: str, data: bytes, kind: type[T]) -> T:
        if reason := unfit(data, f"the cluster {self.cluster}"):
            raise OtherVersion(
                f"{self.url(name)}: {reason}; or run `spotelastic down {self.cluster}`, and `up` "
                "again, which goes on from its checkpoints"
            )
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise EnvironmentFailure(
                f"{self.url(name)} is not what this version of spotelastic writes: {error}"
            ) from error

    def _key(self, name: str) -> str:
        return f"{self.cluster}/{name}"
