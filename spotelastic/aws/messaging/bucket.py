"""Stores the objects of a cluster in an S3 bucket, under `<cluster>/`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from spotelastic.aws.base.clients import Aws, Rejected, calling, listed, passing
from spotelastic.aws.base.partitions import partition_of
from spotelastic.cloud.bucket import ClusterBucket

_ABSENT = frozenset({"NoSuchKey", "NoSuchBucket", "404"})
_PART, _AT_ONCE = 16 << 20, 8
"""Bytes of a part of a large upload, and the parts that are sent at once."""
_OVERTAKEN = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"})
"""S3's answers to a conditional write that another writer was faster with."""


@dataclass(frozen=True, slots=True)
class BucketObjects(ClusterBucket):
    """The objects of one cluster.

    Reads return None for a missing object. All methods raise `Unavailable` if S3 does not answer.
    """

    aws: Aws
    bucket: str
    cluster: str

    def url(self, name: str) -> str:
        """Return the object's URL."""
        return f"s3://{self.bucket}/{self.cluster}/{name}"

    def web_url(self, name: str) -> str:
        """Return the URL by which AWS's services find the object."""
        host = f"s3.{self.aws.region}.{partition_of(self.aws.region).domain}"
        return f"https://{host}/{self.bucket}/{self._key(name)}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the object and its version (S3's ETag)."""
        with passing(*_ABSENT), calling(f"read {self.url(name)}"):
            answer = self.aws.s3.get_object(Bucket=self.bucket, Key=self._key(name))
            return answer["Body"].read(), answer["ETag"]
        return None

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        """Write an object."""
        with calling(f"write {self.url(name)}"):
            self.aws.s3.put_object(Bucket=self.bucket, Key=self._key(name), Body=data)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; return False if it exists. Of several creators one succeeds."""
        return self._put_if("create", name, data, IfNoneMatch="*")

    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Write an object that has this version; return False if it has another, or is gone."""
        return self._put_if("change", name, data, IfMatch=version)

    def _put_if(self, what: str, name: str, data: bytes, **condition: str) -> bool:
        """Write under a condition; return False if it does not hold."""
        with passing(*_OVERTAKEN), calling(f"{what} {self.url(name)}"):
            self.aws.s3.put_object(Bucket=self.bucket, Key=self._key(name), Body=data, **condition)
            return True
        return False

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all objects with this prefix, in order."""
        keys = (item["Key"] for page in self._pages(prefix) for item in page)
        return tuple(sorted(key.removeprefix(self._key("")) for key in keys))

    def create_from(self, name: str, file: Path) -> bool:
        """Create an object from a large file, in parts; return False if it exists.

        Parts of an upload that fails are dropped by the bucket after two days.
        """
        s3, at = self.aws.s3, {"Bucket": self.bucket, "Key": self._key(name)}

        def send(number: int) -> dict[str, Any]:
            with file.open("rb") as content:
                content.seek((number - 1) * _PART)
                part = s3.upload_part(**at, **its, PartNumber=number, Body=content.read(_PART))
            return {"PartNumber": number, "ETag": part["ETag"]}

        with passing(*_OVERTAKEN), calling(f"create {self.url(name)}"):
            its = {"UploadId": s3.create_multipart_upload(**at)["UploadId"]}
            count = max(1, math.ceil(file.stat().st_size / _PART))
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload") as pool:
                parts = list(pool.map(send, range(1, count + 1)))
            s3.complete_multipart_upload(
                **at, **its, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
            return True
        return False

    def download(self, name: str, file: Path) -> None:
        """Download a large object into a file."""
        with calling(f"read {self.url(name)}"):
            self.aws.s3.download_file(self.bucket, self._key(name), str(file))

    def has(self, name: str) -> bool:
        """Whether the object exists."""
        with passing(*_ABSENT), calling(f"look for {self.url(name)}"):
            self.aws.s3.head_object(Bucket=self.bucket, Key=self._key(name))
            return True
        return False

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is not an error."""
        with calling(f"delete {self.url(name)}"):
            self.aws.s3.delete_object(Bucket=self.bucket, Key=self._key(name))

    def size(self, folder: str) -> int:
        """Return the bytes below `folder`, e.g. "checkpoints/"; 0 if there is no bucket."""
        return sum(item["Size"] for page in self._pages(folder) for item in page)

    def delete_all(self, prefix: str = "") -> int:
        """Delete every object below `prefix`, by default all; return their number."""
        deleted = 0
        for page in self._pages(prefix):
            keys = [{"Key": item["Key"]} for item in page]
            with calling(f"delete {self.url(prefix)}"):
                answer = self.aws.s3.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True}
                )
            for error in answer.get("Errors", ()):  # S3 answers so if it has deleted some
                url = f"s3://{self.bucket}/{error['Key']}"
                raise Rejected(f"cannot delete {url}: {error['Message']}", error["Code"])
            deleted += len(keys)
        return deleted

    def _pages(self, prefix: str) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield what S3 says of the objects with this prefix; nothing if there is no bucket."""
        with passing(*_ABSENT), calling(f"list {self.url(prefix)}"):
            pages = self.aws.s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._key(prefix)
            )
            yield from (page["Contents"] for page in pages if page.get("Contents"))

    def abort_uploads(self, prefix: str) -> None:
        """Abort unfinished multipart uploads below `prefix`, whose parts cost money."""
        # another process has ended it
        with (
            passing(*_ABSENT, "NoSuchUpload"),
            calling(f"end unfinished uploads in {self.url(prefix)}"),
        ):
            its = {"Bucket": self.bucket, "Prefix": self._key(prefix)}
            for upload in list(listed(self.aws.s3, "list_multipart_uploads", "Uploads", **its)):
                self.aws.s3.abort_multipart_upload(
                    Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )

    def _key(self, name: str) -> str:
        return f"{self.cluster}/{name}"


def clusters_in(aws: Aws, bucket: str) -> tuple[str, ...]:
    """Return the names under which clusters or runs have left objects in a bucket.

    Empty if there is no such bucket.
    """
    with passing(*_ABSENT), calling(f"list s3://{bucket}"):
        its = {"Bucket": bucket, "Delimiter": "/"}
        found = listed(aws.s3, "list_objects_v2", "CommonPrefixes", **its)
        folders = [each["Prefix"].rstrip("/") for each in found]
        return tuple(sorted(each for each in folders if not each.startswith("_")))
    return ()
