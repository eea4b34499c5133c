"""S3 through obstore: parts go out of shared memory without a copy, ranges come back into it.

Every call is one attempt; retries are the caller's, who knows whether a repeated write is safe.
"""

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PreconditionError,
)
from obstore.store import S3Store

from spotelastic_checkpoints import isolated
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage import s3_access
from spotelastic_checkpoints.storage.parts import PARTS_AT_ONCE, WHOLE, cut, part_size
from spotelastic_checkpoints.storage.port import Blob, unseen
from spotelastic_checkpoints.storage.ranges import Ranges, proxy_of
from spotelastic_checkpoints.storage.s3_answers import ANSWER_WITHIN, PAGE, refuses

PIECE = 4 << 20
"""Bytes between two reports of progress."""
PART_WITHIN = 120.0
"""Seconds for one part."""
SWEEP_WITHIN = 60.0
SIGNED_FOR = timedelta(hours=1)

_STATUS = re.compile(r"status code: (\d+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REMEDIES = {
    "AccessDenied": "give these credentials the rights in docs/reference/permissions.md",
    "ExpiredToken": "these credentials have expired, renew them",
    "RequestTimeTooSkewed": "this machine's clock is wrong, set it",
}
_WANTS_SUMS = re.compile(r"content-md5|x-amz-checksum", re.IGNORECASE)
"""In the answer to an upload without one: object lock's, a policy's."""
_TOOK = re.compile(r" in [\d.]+\w*s\b")


class S3Storage:
    """Keys under `s3://bucket/prefix`."""

    weaker = ""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._bucket, _, self._prefix = self.url.removeprefix("s3://").partition("/")
        access = s3_access.find(self._bucket)
        # Writes would go through a proxy of any kind, and the first restore would not.
        proxy_of(urlsplit(access.address))
        self._access = access
        self._sums = False
        """The bucket wants checksums, as one with object lock does."""
        self._connect()
        self._ranges = Ranges(
            lambda key: obstore.sign(self._bulk, "GET", key, SIGNED_FOR), PART_WITHIN
        )

    def get(self, key: str) -> Blob | None:
        try:
            with self._explained(key):
                answer = obstore.get(self._small, key)
                return Blob(bytes(answer.bytes()), str(answer.meta["e_tag"]))
        except FileNotFoundError:
            return None

    def read(self, key: str, offset: int, target: memoryview) -> int:
        try:
            with self._explained(key):
                return self._ranges.read(key, offset, target)
        except FileNotFoundError:
            return 0

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        try:
            with self._explained(key):
                self._put(key, data, progress)
        except FileNotFoundError as error:
            # Its multipart upload: somebody took it for one that was left behind.
            raise StorageUnavailable(f"{self.url}/{key}: {_brief(error)}") from error

    def create(self, key: str, data: bytes) -> bool:
        try:
            with self._explained(key, conditional=True):
                obstore.put(self._small, key, data, mode="create", use_multipart=False)
        except FileExistsError as error:
            if self.get(key) is None:
                # 409: S3 was busy with another write of the key, which has not come about.
                raise StorageUnavailable(f"{self.url}/{key}: {error}") from error
            return False
        return True

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        try:
            with self._explained(key, conditional=True):
                obstore.put(self._small, key, data, mode={"e_tag": etag}, use_multipart=False)
        except FileExistsError as error:
            now = self.get(key)
            if now is not None and now.etag == etag:
                raise StorageUnavailable(f"{self.url}/{key}: {error}") from error
            return False
        return True

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(self.times(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        with self._explained(prefix):
            pages = obstore.list(self._small, prefix or None, chunk_size=PAGE)
            return {e["path"]: e["last_modified"].timestamp() for page in pages for e in page}

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        for first in range(0, len(names), PAGE):
            with self._explained("a retired checkpoint"):
                obstore.delete(self._small, names[first : first + PAGE])

    def unfinished(self) -> list[str]:
        return self._uploads("list", "").splitlines()

    def abort_uploads(self, prefix: str) -> int:
        return len(self._uploads("abort", prefix).splitlines())

    def close(self) -> None:
        self._ranges.close()

    def _put(self, key: str, data: memoryview, progress: Callable[[int], None]) -> None:
        if len(data) <= WHOLE:
            obstore.put(self._bulk, key, data, use_multipart=False)
            progress(len(data))
            return
        # A failure in between aborts the upload.
        obstore.put(
            self._bulk,
            key,
            _pieces(data, progress),
            use_multipart=True,
            chunk_size=part_size(len(data)),
            max_concurrency=PARTS_AT_ONCE,
        )

    def _connect(self) -> None:
        self._small = self._store(self._access, ANSWER_WITHIN)
        self._bulk = self._store(self._access, PART_WITHIN)

    def _store(self, access: s3_access.S3Access, within: float) -> S3Store:
        options: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": "3s",
            "timeout": f"{within:g}s",
        }
        return S3Store(
            self._bucket,
            prefix=self._prefix or None,
            credential_provider=access.provider,
            virtual_hosted_style_request=False,
            # Every item is verified by our own checksum; a second hash would cost CPU.
            unsigned_payload=True,
            **cast("Any", {"checksum_algorithm": "sha256"} if self._sums else {}),
            client_options=cast("Any", options),
            retry_config={"max_retries": 0},
            **access.config,
        )

    def _uploads(self, action: str, prefix: str) -> str:
        """obstore has no words for these, and what has is too large to stay in a daemon."""
        module = "spotelastic_checkpoints.storage.uploads"
        command = isolated.command(module, action, self.url, prefix)
        try:
            done = subprocess.run(
                command,
                env=isolated.environment(),
                capture_output=True,
                text=True,
                timeout=SWEEP_WITHIN,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as error:  # no memory for a process, too
            raise StorageUnavailable(f"{self.url}: unfinished uploads: {error}") from error
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2]
            raise StorageUnavailable(f"{self.url}: unfinished uploads: {said}")
        return done.stdout

    @contextmanager
    def _explained(self, what: str, *, conditional: bool = False) -> Iterator[None]:
        """FileNotFoundError, FileExistsError (a condition failed), or one of our own."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            self._check_bucket(error)
            if conditional:
                raise FileExistsError(_brief(error)) from error
            # S3 was busy with another write of the key.
            raise StorageUnavailable(f"{self.url}/{what}: {_brief(error)}") from error
        except FileNotFoundError as error:
            self._check_bucket(error)
            raise
        except (BaseError, OSError) as error:
            self._check_bucket(error)
            place = f"{self.url}/{what}"
            status, code = _status(error), _code(error)
            if status == 301 or "redirect without LOCATION" in str(error):
                raise StorageRefused(
                    f"the bucket {self._bucket} is in another region: set AWS_REGION to it"
                ) from error
            if status == 400 and _WANTS_SUMS.search(str(error)) and not self._sums:
                self._sums = True
                self._connect()
                raise StorageUnavailable(
                    f"{self.url} wants a checksum with each upload, and has them from now on"
                ) from error
            if refuses(status, code):
                raise StorageRefused(f"{place}: {_brief(error)}") from error
            raise StorageUnavailable(f"{place}: {_brief(error)}") from error

    def _check_bucket(self, error: Exception) -> None:
        if _code(error) == "NoSuchBucket":
            raise StorageRefused(f"there is no bucket {self._bucket}: create it first") from error


def _pieces(data: memoryview, progress: Callable[[int], None]) -> Iterator[memoryview]:
    for piece in cut(data, PIECE):
        yield piece
        progress(len(piece))


def _status(error: Exception) -> int:
    """0 where there was no answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _code(error: Exception) -> str:
    """What S3 calls it; empty where it did not say."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _brief(error: Exception) -> str:
    """What the server or the network said, without the request's story."""
    # How long it took is another number each time; the same outage has one message.
    text = _TOOK.sub("", str(error))
    status, code = _status(error), _code(error)
    if code in _REMEDIES:
        return f"{status} {code}: {_REMEDIES[code]}"
    if code and status:
        return f"{status} {code}"
    if status == 403:  # also where the answer has no body, as to a HEAD
        return f"403: {_REMEDIES['AccessDenied']}"
    if status:
        return f"status {status}"
    if "169.254.169.254" in text:
        return (
            "no AWS credentials: none in the environment, no profile, and the instance metadata "
            "service does not answer"
        )
    lines = [line.strip() for line in text.partition("Debug source")[0].splitlines()]
    return " ".join(filter(None, lines)) or type(error).__name__
