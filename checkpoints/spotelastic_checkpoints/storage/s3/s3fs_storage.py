"""Stores objects in S3 through s3fs, for platforms and options that obstore does not support.

Where s3fs cannot state a condition, its underlying client is called. It needs 60 MiB more memory
than obstore, and three times the CPU.
"""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import aiohttp
import fsspec.asyn
import s3fs
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from spotelastic_checkpoints.errors import CheckpointsError, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.answers import refuses
from spotelastic_checkpoints.storage.arrival import check_arrived
from spotelastic_checkpoints.storage.hanging import COPIES, Copies, forget_frames
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.parts import PART, PARTS_AT_ONCE, cut, part_size
from spotelastic_checkpoints.storage.port import Blob, unseen

WHOLE = 2 * PART
"""Bytes up to which an object goes up in one request; it is copied for that."""
_OPTIONS = {
    *inspect.signature(s3fs.S3FileSystem.__init__).parameters,
    *("profile", "skip_instance_cache", "use_listings_cache"),
} - {"self", "asynchronous", "loop", "kwargs"}
"""Options that s3fs knows. It accepts others too, and fails with them at the first request."""

T = TypeVar("T")


class S3fsStorage:
    """An object store in S3, with its keys under `s3://bucket/prefix`.

    Every call is one attempt; the caller retries.
    """

    weaker = ""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        whole: int = WHOLE,
        copies: Copies = COPIES,
        request: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        """Open the bucket. `options` are those of s3fs, except for retries and deadlines.

        `request` makes a request of boto3's client by its method and arguments; s3fs does, unless
        another function is given.
        """
        self._limits = limits
        self._whole = whole
        self._copies = copies
        self.url = url.rstrip("/")
        self._bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        self._prefix = prefix + "/" if prefix else ""
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        given = dict(options or {})
        if unknown := sorted(set(given) - _OPTIONS):
            raise StorageRefused(f"{url}: s3fs has no option {unknown[0]}")
        self._verified = not (endpoint or given.get("endpoint_url"))
        """Whether the store, as AWS does, compares uploads with the checksums that they carry."""
        config = {
            # Others may not know these checksums. What goes to them is read back.
            "request_checksum_calculation": "when_supported" if self._verified else "when_required",
            # Each item that is read is verified by our own checksum.
            "response_checksum_validation": "when_required",
            **given.pop("config_kwargs", {}),
            "connect_timeout": 3.0,
            "read_timeout": limits.answer,
            "retries": {"total_max_attempts": 1},
        }
        ours = {"skip_instance_cache": True, "use_listings_cache": False, "config_kwargs": config}
        self._fs = s3fs.S3FileSystem(**{"endpoint_url": endpoint, **given, **ours})
        self._fs.retries = 1
        self._request = request or self._fs._call_s3

    def get(self, key: str) -> Blob | None:
        try:
            return self._run(key, self._get(key))
        except FileNotFoundError:
            return None

    def read(self, key: str, offset: int, target: memoryview) -> int:
        try:
            span = f"bytes={offset}-{offset + len(target) - 1}"
            data = self._run(key, self._get(key, span)).data
        except FileNotFoundError:
            return 0
        target[: len(data)] = data
        return len(data)

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        if len(data) <= self._whole:
            with self._room(key, len(data), parts=1) as held:
                work = self._call("put_object", Key=self._prefix + key, Body=bytes(data))
                self._run(key, work, held=held)
            progress(len(data))
        else:
            self._put_large(key, data, progress)
        if not self._verified:
            check_arrived(self, key, data)

    def _put_large(self, key: str, data: memoryview, progress: Callable[[int], None]) -> None:
        parts = len(data) // part_size(len(data)) + 1
        try:
            with self._room(key, PARTS_AT_ONCE * part_size(len(data)), parts) as held:
                work = self._put_parts(self._prefix + key, data, progress)
                self._run(key, work, parts, held)
        except FileNotFoundError as error:
            # The multipart upload is gone: another process aborted it as an unfinished one.
            raise StorageUnavailable(f"{self.url}/{key}: its upload was aborted") from error

    def create(self, key: str, data: bytes) -> bool:
        return self._put_if(key, data, IfNoneMatch="*")

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        return self._put_if(key, data, IfMatch=etag)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(self.times(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        return self._run(prefix, self._list(self._prefix + prefix))

    def delete(self, keys: Iterable[str]) -> None:
        names = [{"Key": self._prefix + key} for key in keys]
        for first in range(0, len(names), 1000):
            batch = {"Objects": names[first : first + 1000], "Quiet": True}
            self._run("a retired checkpoint", self._call("delete_objects", Delete=batch))

    def unfinished(self) -> list[str]:
        found = self._run("", self._uploads(""))
        return [upload["Key"].removeprefix(self._prefix) for upload in found]

    def abort_uploads(self, prefix: str) -> int:
        return self._run(prefix, self._abort_uploads(prefix))

    def close(self) -> None:
        client = self._fs._s3
        if client is not None:
            fsspec.asyn.sync(self._fs.loop, client.__aexit__, None, None, None, timeout=5)

    # -- inside fsspec's event loop ---------------------------------------------------------------

    async def _call(self, method: str, **arguments: Any) -> Any:
        return await self._request(method, Bucket=self._bucket, **arguments)

    async def _get(self, key: str, span: str = "") -> Blob:
        arguments = {"Range": span} if span else {}
        answer = await self._call("get_object", Key=self._prefix + key, **arguments)
        async with answer["Body"] as body:
            return Blob(await body.read(), answer["ETag"])

    async def _list(self, prefix: str) -> dict[str, float]:
        times: dict[str, float] = {}
        more: dict[str, str] = {}
        while True:
            page = await self._call(
                "list_objects_v2", Prefix=prefix, MaxKeys=self._limits.page, **more
            )
            for entry in page.get("Contents", ()):
                times[entry["Key"].removeprefix(self._prefix)] = entry["LastModified"].timestamp()
            if not page.get("IsTruncated"):
                return times
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def _put_parts(self, key: str, data: memoryview, progress: Callable[[int], None]) -> None:
        upload = (await self._call("create_multipart_upload", Key=key))["UploadId"]
        slots = asyncio.Semaphore(PARTS_AT_ONCE)
        done: list[dict[str, Any]] = []
        failed: list[Exception] = []

        async def put(number: int, part: memoryview) -> None:
            async with slots:
                if failed:
                    return
                try:
                    answer = await self._call(
                        "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=bytes(part)
                    )
                except Exception as error:
                    if not failed:  # a second error would never be raised, and keep its part
                        failed.append(error)
                    return
            done.append({"PartNumber": number, "ETag": answer["ETag"]})
            progress(len(part))

        try:
            # All parts run to their end: a part that arrives after the abort would stay.
            pieces = enumerate(cut(data, part_size(len(data))), 1)
            await asyncio.gather(*(put(number, part) for number, part in pieces))
            if failed:
                raise failed[0]
            parts = {"Parts": sorted(done, key=lambda part: int(part["PartNumber"]))}
            await self._call(
                "complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload=parts
            )
        except BaseException:
            # An unfinished upload costs money, and no listing of objects shows it.
            await self._call("abort_multipart_upload", Key=key, UploadId=upload)
            raise

    async def _uploads(self, prefix: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        more: dict[str, str] = {}
        while True:
            page = await self._call("list_multipart_uploads", Prefix=self._prefix + prefix, **more)
            found += page.get("Uploads", ())
            if not page.get("IsTruncated"):
                return found
            more = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    async def _abort_uploads(self, prefix: str) -> int:
        uploads = await self._uploads(prefix)
        for upload in uploads:
            await self._call(
                "abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"]
            )
        return len(uploads)

    # -- running them, and explaining their errors ------------------------------------------------

    def _put_if(self, key: str, data: bytes, **condition: str) -> bool:
        try:
            self._run(key, self._call("put_object", Key=self._prefix + key, Body=data, **condition))
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    @contextmanager
    def _room(self, what: str, nbytes: int, parts: int) -> Iterator[ExitStack]:
        """Take room for copies of `nbytes`.

        It is given back here unless `_run` has taken it over.
        """
        with ExitStack() as held:
            try:
                held.callback(self._copies.room(nbytes, self._limit(parts)))
            except TimeoutError as error:
                raise self._explained(what, error) from error
            yield held

    def _run(
        self,
        what: str,
        work: Coroutine[Any, Any, T],
        parts: int = 1,
        held: ExitStack | None = None,
    ) -> T:
        """Run the work in fsspec's event loop, and return its result.

        `held` is released when the work has ended, which may be after this function has returned.
        """

        async def awaited() -> T:
            with held.pop_all() if held is not None else ExitStack():
                try:
                    return await work
                except BaseException as error:
                    forget_frames(error)
                    raise

        try:
            result: T = fsspec.asyn.sync(self._fs.loop, awaited, timeout=self._limit(parts))
            return result
        except Exception as error:
            raise self._explained(what, error) from error

    def _limit(self, parts: int) -> float:
        """Return the seconds that so many parts may take."""
        return self._limits.answer * (1 + parts / PARTS_AT_ONCE)

    def _explained(self, what: str, error: Exception) -> Exception:
        """Return the error to raise instead of one of the client.

        It is `FileNotFoundError`, `FileExistsError` (a condition failed), `StorageRefused` or
        `StorageUnavailable`.
        """
        place = f"{self.url}/{what}"
        cause = error if isinstance(error, ClientError) else error.__cause__
        if isinstance(cause, ClientError):
            code = str(cause.response["Error"].get("Code", ""))
            status = int(cause.response["ResponseMetadata"].get("HTTPStatusCode", 0))
            if code == "NoSuchBucket":
                return StorageRefused(f"there is no bucket {self._bucket}: create it first")
            if status in (404, 416):
                return FileNotFoundError(place)
            if status == 412:
                return FileExistsError(place)
            message = f"{place}: {code or status} {cause.response['Error'].get('Message', '')}"
            if refuses(status, code):
                return StorageRefused(message.strip())
            return StorageUnavailable(message.strip())
        if isinstance(error, CheckpointsError):
            return error
        if isinstance(error, NoCredentialsError):
            return StorageRefused(f"{place}: no AWS credentials were found")
        if isinstance(error, OSError | BotoCoreError | TimeoutError | aiohttp.ClientError):
            return StorageUnavailable(f"{place}: {str(error) or type(error).__name__}")
        return error
