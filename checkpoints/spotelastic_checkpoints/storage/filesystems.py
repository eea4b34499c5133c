"""Stores objects in any file system that fsspec opens by URL, with the guarantees that it has.

Every call has a deadline. An abandoned call may still have its effect later, and must do no harm
then. The data that it writes was copied before. A call that creates or swaps an object holds the
only lock until it ends.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import fsspec
import xxhash
from fsspec.spec import AbstractBufferedFile

from spotelastic_checkpoints.errors import CheckpointsError, StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.answers import refuses
from spotelastic_checkpoints.storage.arrival import check_arrived
from spotelastic_checkpoints.storage.hanging import COPIES, Copies, Hanging
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.object_store import Blob, unseen
from spotelastic_checkpoints.storage.parts import PART, WHOLE, cut

CREATING = ("s3", "gs", "gcs", "az", "abfs", "abfss", "memory")
"""Schemes of stores that write whole objects, and can create an object only if it is missing."""
PACKAGES = {
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("hdfs", "arrow_hdfs"), "pyarrow"),
    "smb": "smbprotocol",
    "webdav": "webdav4",
    "oss": "ossfs",
    "oci": "ocifs",
    "hf": "huggingface_hub",
    "lakefs": "lakefs-spec",
}
"""The package to install for a scheme, where its name is not that of the missing module."""
OPEN_WITHIN = 60.0
"""Seconds to import a file system and to connect."""
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")

T = TypeVar("T")


class FsspecStorage:
    """An object store behind an fsspec file system.

    Creating an object is atomic if the store can do that. A swap reads, compares and writes.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        whole: int = WHOLE,
        copies: Copies = COPIES,
    ) -> None:
        """Open the file system. Raises `StorageRefused` or `StorageUnavailable`.

        `options` are fsspec's storage options. Objects of at most `whole` bytes go up in one
        request.
        """
        self._limits = limits
        self._whole = whole
        self.url = url.rstrip("/")
        scheme, _, _ = self.url.partition("://")
        self._creates = scheme in CREATING
        self.weaker = _weaker(scheme, self._creates)
        self._options = dict(options or {})
        self._hanging = Hanging(copies=copies)
        self._idle: list[Any] = []
        """File systems that no thread uses. One serves one thread at a time, unless it is
        asynchronous.
        """
        self._one_writer = threading.Lock()
        with self._opened(scheme):
            first = self._hanging.within(OPEN_WITHIN, lambda: self._first(scheme))
        self._shared = first if first.async_impl else None
        self._give_back(first)
        self._root = str(first._strip_protocol(self.url)).rstrip("/")

    def get(self, key: str) -> Blob | None:
        data = self._call(key, self._limits.answer, lambda fs: self._content(fs, key))
        return None if data is None else Blob(data, xxhash.xxh3_128_hexdigest(data))

    def read(self, key: str, offset: int, target: memoryview) -> int:
        end = offset + len(target)
        try:
            data = self._call(
                key,
                self._limits.part,
                lambda fs: fs.cat_file(self._path(key), start=offset, end=end),
            )
        except FileNotFoundError:
            return 0
        except StorageUnavailable as error:
            if _is_beyond_the_end(error.__cause__):
                return 0
            raise
        if len(data) > len(target):
            raise StorageRefused(f"{self.url}/{key}: the store sends more than the range asked for")
        target[: len(data)] = data
        return len(data)

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        if len(data) <= self._whole:
            self._put_whole(key, data)
            progress(len(data))
        else:
            with self._explained(key):
                self._put_parts(self._path(key), data, progress)
        check_arrived(self, key, data)

    def create(self, key: str, data: bytes) -> bool:
        return self._call(key, self._limits.answer, lambda fs: self._created(fs, key, data))

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        return self._call(key, self._limits.answer, lambda fs: self._swapped(fs, key, data, etag))

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(self.times(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        place = self._path(prefix).rstrip("/")
        try:
            found = self._call(prefix, self._limits.part, lambda fs: fs.find(place, detail=True))
        except FileNotFoundError:
            return {}
        return {self._key(name): _written(entry) for name, entry in found.items()}

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with suppress(FileNotFoundError):
                self._delete(key)

    def unfinished(self) -> list[str]:
        """Return nothing: these stores end unfinished uploads by themselves."""
        return []

    def abort_uploads(self, prefix: str) -> int:
        return 0

    def close(self) -> None:
        pass

    # -- calls of a file system, in a thread that may be abandoned --------------------------------

    def _content(self, fs: Any, key: str) -> bytes | None:
        try:
            content: bytes = fs.cat_file(self._path(key))
        except FileNotFoundError:
            return None
        return content

    def _created(self, fs: Any, key: str, data: bytes) -> bool:
        with self._only_writer():
            if not self._creates:
                if self._content(fs, key) is not None:
                    return False
                self._write(fs, key, data)
                return True
            try:
                self._write(fs, key, data, mode="create")
            except FileExistsError:
                return False
            return True

    def _swapped(self, fs: Any, key: str, data: bytes, etag: str) -> bool:
        with self._only_writer():
            found = self._content(fs, key)
            if found is None or xxhash.xxh3_128_hexdigest(found) != etag:
                return False
            self._write(fs, key, data)
            return True

    def _write(self, fs: Any, key: str, data: bytes, **how: str) -> None:
        self._in_folder(fs, self._path(key), lambda path: fs.pipe_file(path, data, **how))

    def _in_folder(self, fs: Any, path: str, write: Callable[[str], T]) -> T:
        """Write a file, and create its folder if that is missing.

        A store of objects has no folders. It would create a bucket, which is refused instead.
        """
        with suppress(FileNotFoundError):
            return write(path)
        try:
            if not self._creates:
                fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            return write(path)
        except FileNotFoundError as error:
            raise StorageRefused(f"{self.url}: there is no such bucket or folder") from error

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        if not self._one_writer.acquire(timeout=self._limits.answer):
            raise TimeoutError("an earlier write has not been answered yet")
        try:
            yield
        finally:
            self._one_writer.release()

    def _put_whole(self, key: str, data: memoryview) -> None:
        def write(copy: bytes) -> None:
            self._with_one(lambda fs: self._write(fs, key, copy))

        with self._explained(key):
            self._hanging.copied(self._limits.part, data, write)

    def _put_parts(self, path: str, data: memoryview, progress: Callable[[int], None]) -> None:
        fs = self._hanging.within(OPEN_WITHIN, self._take)
        file = self._hanging.within(
            self._limits.answer, lambda: self._in_folder(fs, path, lambda p: fs.open(p, "wb"))
        )
        try:
            for part in cut(data, PART):
                self._hanging.copied(self._limits.part, part, file.write)
                progress(len(part))
            self._hanging.within(self._limits.part, file.close)
        except BaseException:
            with suppress(Exception):
                self._hanging.within(self._limits.answer, lambda: _discard(fs, file, path))
            raise
        self._give_back(fs)

    # -- running such calls, and explaining their errors ------------------------------------------

    def _call(self, what: str, seconds: float, call: Callable[[Any], T]) -> T:
        with self._explained(what):
            return self._hanging.within(seconds, partial(self._with_one, call))

    def _with_one(self, call: Callable[[Any], T]) -> T:
        fs = self._take()
        # A file system that has failed is not used again: its connection may be broken.
        try:
            answer = call(fs)
        except (FileNotFoundError, FileExistsError):
            self._give_back(fs)
            raise
        self._give_back(fs)
        return answer

    def _first(self, scheme: str) -> Any:
        self._kind = fsspec.get_filesystem_class(scheme)
        return self._file_system()

    def _take(self) -> Any:
        fs = self._shared
        if fs is None:
            try:
                fs = self._idle.pop()
            except IndexError:
                return self._file_system()
        fs.invalidate_cache()
        return fs

    def _give_back(self, fs: Any) -> None:
        if fs is not self._shared:
            self._idle.append(fs)

    def _file_system(self) -> Any:
        options = {**self._kind._get_kwargs_from_urls(self.url), **self._options}
        options["skip_instance_cache"] = True
        if self._kind.async_impl:  # other kinds may refuse an option that they do not know
            options["use_listings_cache"] = False
        return self._kind(**options)

    def _delete(self, key: str) -> None:
        self._call(key, self._limits.answer, lambda fs: fs.rm_file(self._path(key)))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _key(self, path: str) -> str:
        """Return the key of a path. Some file systems list paths without their leading slash."""
        return path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/")

    @contextmanager
    def _opened(self, scheme: str) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            missing = getattr(error.__cause__ or error, "name", None) or scheme
            package = PACKAGES.get(scheme, missing.partition(".")[0])
            raise StorageRefused(f"{self.url} needs a package: pip install {package}") from error
        except PermissionError as error:
            raise StorageRefused(f"{self.url}: {error}") from error
        except OSError as error:  # includes TimeoutError
            raise StorageUnavailable(f"{self.url}: {error}") from error
        except Exception as error:
            raise StorageRefused(f"{self.url}: {error}") from error

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError, CheckpointsError):
            raise
        except PermissionError as error:
            raise StorageRefused(f"{self.url}/{what}: {error}") from error
        except NotImplementedError as error:
            raise StorageRefused(
                f"{self.url}: fsspec cannot do this in that store: {error}"
            ) from error
        except Exception as error:
            text = str(error) or type(error).__name__
            raise StorageUnavailable(f"{self.url}/{what}: {text}") from error


class S3fsStorage(FsspecStorage):
    """S3 through s3fs, for options that obstore does not know. Its conditions are S3's own."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        whole: int = WHOLE,
    ) -> None:
        """Open the bucket. `options` are those of s3fs; an unknown one is refused."""
        given = dict(options or {})
        # s3fs accepts what it does not know, and fails with it at the first request.
        known = inspect.signature(fsspec.get_filesystem_class("s3").__init__).parameters
        if unknown := sorted(given.keys() - known.keys() - {"profile"}):
            raise StorageRefused(f"{url}: s3fs has no option {unknown[0]}")
        given["config_kwargs"] = {
            # Others than AWS may not know these checksums. What is uploaded is read back.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            **given.get("config_kwargs", {}),
            "connect_timeout": 3.0,
            "read_timeout": limits.answer,
            "retries": {"total_max_attempts": 1},
        }
        super().__init__(url, given, limits, whole)
        self.weaker = ""
        self._bucket, _, prefix = self._root.partition("/")
        self._prefix = prefix + "/" if prefix else ""

    def delete(self, keys: Iterable[str]) -> None:
        names = [{"Key": self._prefix + key} for key in keys]
        for first in range(0, len(names), 1000):
            these = {"Objects": names[first : first + 1000], "Quiet": True}
            self._of_bucket("a retired checkpoint", "delete_objects", Delete=these)

    def unfinished(self) -> list[str]:
        return [upload["Key"].removeprefix(self._prefix) for upload in self._uploads("")]

    def abort_uploads(self, prefix: str) -> int:
        return len(self.aborted(prefix))

    def aborted(self, prefix: str) -> list[str]:
        """Abort unfinished uploads, and return their keys."""
        uploads = self._uploads(prefix)
        for each in uploads:
            named = {"Key": each["Key"], "UploadId": each["UploadId"]}
            self._of_bucket(prefix, "abort_multipart_upload", **named)
        return [each["Key"].removeprefix(self._prefix) for each in uploads]

    def _uploads(self, prefix: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        more: dict[str, str] = {}
        while True:
            page = self._of_bucket(
                prefix, "list_multipart_uploads", Prefix=self._prefix + prefix, **more
            )
            found += page.get("Uploads", ())
            if not page.get("IsTruncated"):
                return found
            more = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def _of_bucket(self, what: str, method: str, **given: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._call(
            what, self._limits.answer, lambda fs: fs.call_s3(method, Bucket=self._bucket, **given)
        )
        return answer

    def _file_system(self) -> Any:
        fs = super()._file_system()
        fs.retries = 1  # the caller retries
        return fs

    def _swapped(self, fs: Any, key: str, data: bytes, etag: str) -> bool:
        place = {"Bucket": self._bucket, "Prefix": self._prefix + key, "MaxKeys": 1}
        # The tag is older than the content: what is written in between fails the condition.
        listed = fs.call_s3("list_objects_v2", **place).get("Contents", ())
        found = self._content(fs, key) if listed else None
        if found is None or xxhash.xxh3_128_hexdigest(found) != etag:
            return False
        return self._put_if(fs, key, data, IfMatch=listed[0]["ETag"])

    def _content(self, fs: Any, key: str) -> bytes | None:
        with suppress(FileNotFoundError):
            # Otherwise it asks for the size first, and errors of that request have no code.
            content: bytes = fs.cat_file(self._path(key), max_concurrency=1)
            return content
        return None

    def _created(self, fs: Any, key: str, data: bytes) -> bool:
        return self._put_if(fs, key, data, IfNoneMatch="*")

    def _put_if(self, fs: Any, key: str, data: bytes, **condition: str) -> bool:
        try:
            self._write(fs, key, data, **condition)
        except OSError as error:
            if _s3_answer(error)[0] != 412:
                raise
            return False
        return True

    def _put_parts(self, path: str, data: memoryview, progress: Callable[[int], None]) -> None:
        try:
            super()._put_parts(path, data, progress)
        except FileNotFoundError as error:
            # The multipart upload is gone: another process aborted it as an unfinished one.
            raise StorageUnavailable(f"{self.url}: an upload to {path} was aborted") from error

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            with super()._explained(what):
                yield
        except (StorageRefused, StorageUnavailable) as error:
            status, code, message = _s3_answer(error.__cause__)
            if not status:
                raise
            if status == 416:  # a range beyond the end
                raise FileNotFoundError(what) from error
            kind = StorageRefused if refuses(status, code) else StorageUnavailable
            raise kind(f"{self.url}/{what}: {status} {code} {message}") from error


def _s3_answer(error: BaseException | None) -> tuple[int, str, str]:
    """Return status, code and message of what S3 answered; 0 if it did not answer."""
    answer: dict[str, Any] = {}
    while error is not None and not answer:
        answer, error = getattr(error, "response", None) or {}, error.__cause__
    told = answer.get("Error", {})
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(told.get("Code", "")), str(told.get("Message", ""))


def _weaker(scheme: str, creates: bool) -> str:
    if creates:
        return (
            f"{scheme}:// has no compare-and-swap through fsspec: two rounds that race for LATEST "
            "may both move it; never run two clusters on one root"
        )
    return (
        f"{scheme}:// has no conditional writes through fsspec: two rounds that race may both "
        "commit, and a write that is cut off may leave a part of a file; never run two clusters "
        "on one root"
    )


def _discard(fs: Any, file: Any, path: str) -> None:
    if isinstance(file, AbstractBufferedFile):
        # Closing the file would create an object from the bytes written so far.
        file.discard()
        file.closed = True
        return
    with suppress(Exception):
        file.close()
    fs.rm_file(path)


def _is_beyond_the_end(error: BaseException | None) -> bool:
    """Return whether a store answered 416 to a range, for any HTTP client."""
    return 416 in (getattr(error, name, 0) for name in ("code", "status", "status_code"))


def _written(entry: dict[str, Any]) -> float:
    """Return when a file was written (epoch s).

    File systems name the field differently; 0 if none has it.
    """
    told = next((entry[name] for name in _TIMES if entry.get(name)), 0.0)
    if isinstance(told, str):
        told = datetime.fromisoformat(told)
    return told.timestamp() if isinstance(told, datetime) else float(told)
