"""Implements what all object stores share that are reached through obstore: S3, Google, Azure.

Every call is one attempt. The caller retries, as it knows whether a repeated write is safe.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.answers import refuses
from spotelastic_checkpoints.storage.arrival import altered, check_arrived
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.object_store import Blob, unseen
from spotelastic_checkpoints.storage.parts import PARTS_AT_ONCE, WHOLE, cut, part_size

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore

PIECE = 4 << 20
"""Bytes written between two reports of progress."""

_STATUS = re.compile(r"status code: (\d+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TOOK = re.compile(r" in [\d.]+\w*s\b")
_BEHIND_THE_END = re.compile(r"status code: 416\b|StartTooLarge")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wording:
    """How the errors of one store are explained to users, and what to do about them."""

    bucket: str = "bucket"
    """The store's word for a bucket."""
    no_bucket: str = "NoSuchBucket"
    """The error code of an answer for a bucket that does not exist."""
    no_credentials: str = "no credentials were found"
    """The message if no credentials were found."""
    asks_for_credentials: re.Pattern[str] = re.compile(r"token request")
    """Matches errors that come from the search for credentials."""
    remedies: dict[str, str] = field(default_factory=dict)
    """What to do, by error code. The key "403" is for answers without a code."""


class ObstoreStorage:
    """An object store behind two obstore clients; keys are relative to their prefix."""

    weaker = ""

    def __init__(
        self,
        url: str,
        bucket: str,
        small: "ObjectStore",
        bulk: "ObjectStore",
        wording: Wording,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Use two clients: `small` with a deadline of `limits.answer`, `bulk` of `limits.part`."""
        self.url = url
        self._bucket = bucket
        self._small = small
        self._bulk = bulk
        self._wording = wording
        self._limits = limits

    def get(self, key: str) -> Blob | None:
        def ask() -> Blob:
            answer = obstore.get(self._small, key)
            return Blob(bytes(answer.bytes()), _etag(answer.meta))

        try:
            return self._call(key, self._limits.answer, ask)
        except FileNotFoundError:
            return None

    def read(self, key: str, offset: int, target: memoryview) -> int:
        def ask() -> bytes:
            span = (offset, offset + len(target))
            try:
                return cast("bytes", obstore.get(self._bulk, key, options={"range": span}).bytes())
            except BaseError as error:
                if _BEHIND_THE_END.search(str(error)):
                    return b""
                raise

        if not target:
            return 0
        try:
            data = self._call(key, self._limits.part, ask)
        except FileNotFoundError:
            return 0
        target[: len(data)] = data
        return len(data)

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        try:
            with self._explained(key):
                self._put(key, data, progress)
        except FileNotFoundError as error:
            # The multipart upload is gone: another process aborted it as an unfinished one.
            raise StorageUnavailable(f"{self.url}/{key}: {self._brief(error)}") from error
        if not self._verified():
            check_arrived(self, key, data)

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._put_if(key, data, "create")
        except FileExistsError as error:
            if self.get(key) is None:
                # 409: the store was busy with another write of the key, and that write failed.
                raise StorageUnavailable(
                    f"{self.url}/{key}: {error}, but asked for it, the store has none: if it goes "
                    "on to say both, look what answers in its place (a proxy, a cache, a replica)"
                ) from error
            return False
        return True

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        try:
            self._put_if(key, data, _update(etag))
        except FileExistsError as error:
            now = self.get(key)
            if now is not None and now.etag == etag:
                raise StorageUnavailable(f"{self.url}/{key}: {error}") from error
            return False
        except FileNotFoundError:
            return False
        return True

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(self.times(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        def ask() -> dict[str, float]:
            pages = obstore.list(self._small, prefix or None, chunk_size=self._limits.page)
            return {e["path"]: e["last_modified"].timestamp() for page in pages for e in page}

        return self._call(prefix, self._limits.part, ask)

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        for first in range(0, len(names), self._limits.page):
            self._delete(names[first : first + self._limits.page])

    def unfinished(self) -> list[str]:
        """Return nothing: these stores end unfinished uploads by themselves or by a bucket rule."""
        return []

    def abort_uploads(self, prefix: str) -> int:
        return 0

    def close(self) -> None:
        pass

    # -- steps that an adapter may replace --------------------------------------------------------

    def _within(self, seconds: float, call: Callable[[], T]) -> T:
        """Return the result of `call`. An adapter whose client may hang abandons the call here."""
        return call()

    def _put(self, key: str, data: memoryview, progress: Callable[[int], None]) -> None:
        """Write `data` without a copy: nothing reads it after this function has returned."""
        if len(data) <= WHOLE:
            obstore.put(self._bulk, key, data, use_multipart=False)
            progress(len(data))
            return
        put_parts(self._bulk, key, pieces(data, progress), len(data))

    def _verified(self) -> bool:
        """Return whether the store compares what arrives with a checksum that is sent with it."""
        return False

    def _explain(self, error: Exception) -> None:
        """Raise the explanation of an error that only this store has."""

    # -- requests and their errors ----------------------------------------------------------------

    def _call(self, what: str, seconds: float, call: Callable[[], T]) -> T:
        with self._explained(what):
            return self._within(seconds, call)

    def _put_if(self, key: str, data: bytes, mode: Any, *, repeated: bool = False) -> None:
        def ask() -> str:
            return _etag(obstore.put(self._small, key, data, mode=mode, use_multipart=False))

        with self._explained(key, conditional=True):
            etag = self._within(self._limits.answer, ask)
        if self._verified():
            return
        now = self.get(key)
        # Another etag: somebody has replaced it since.
        if now is not None and now.etag == etag and now.data != data:
            if repeated:
                raise altered(f"{self.url}/{key}")
            self._put_if(key, data, _update(etag), repeated=True)

    def _delete(self, names: list[str]) -> None:
        what = "a retired checkpoint"
        try:
            self._call(what, self._limits.part, lambda: obstore.delete(self._small, names))
        except FileNotFoundError:  # some stores stop at a missing key, and keep the rest
            for name in names:
                with suppress(FileNotFoundError):
                    self._call(what, self._limits.answer, _deletion(self._small, name))

    @contextmanager
    def _explained(self, what: str, *, conditional: bool = False) -> Iterator[None]:
        """Translate errors of obstore.

        Raises `FileNotFoundError`, `FileExistsError` (a condition failed), `StorageRefused` or
        `StorageUnavailable`.
        """
        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            self._check_bucket(error)
            if conditional:
                raise FileExistsError(self._brief(error)) from error
            # The store was busy with another write of the key.
            raise StorageUnavailable(f"{self.url}/{what}: {self._brief(error)}") from error
        except FileNotFoundError as error:
            self._check_bucket(error)
            raise
        except (BaseError, OSError, RuntimeError) as error:
            self._check_bucket(error)
            self._explain(error)
            place = f"{self.url}/{what}"
            if isinstance(error, NotImplementedError) or refuses(status(error), code(error)):
                raise StorageRefused(f"{place}: {self._brief(error)}") from error
            raise StorageUnavailable(f"{place}: {self._brief(error)}") from error

    def _check_bucket(self, error: Exception) -> None:
        if code(error) == self._wording.no_bucket:
            place = f"{self._wording.bucket} {self._bucket}"
            raise StorageRefused(f"there is no {place}: create it first") from error

    def _brief(self, error: Exception) -> str:
        """Return what the server or the network said, without the story of the request."""
        remedies = self._wording.remedies
        # Without the time it took: one outage then has one message.
        text = _TOOK.sub("", str(error))
        number, name = status(error), code(error)
        if self._wording.asks_for_credentials.search(text):
            return self._wording.no_credentials
        if name in remedies:
            return f"{number} {name}: {remedies[name]}"
        if name and number:
            return f"{number} {name}"
        if str(number) in remedies:  # an answer to HEAD has no body, and so no code
            return f"{number}: {remedies[str(number)]}"
        if number:
            return f"status {number}"
        lines = [line.strip() for line in text.partition("Debug source")[0].splitlines()]
        return " ".join(filter(None, lines)) or type(error).__name__


def client_options(seconds: float) -> "ClientConfig":
    """Return the options of a client whose requests may take this many seconds."""
    options: Any = {"allow_http": True, "connect_timeout": "3s", "timeout": f"{seconds:g}s"}
    return cast("ClientConfig", options)


def put_parts(
    store: "ObjectStore", key: str, data: Iterator[memoryview] | Iterator[bytes], nbytes: int
) -> None:
    """Upload `data` as a multipart upload of `nbytes`. A failure aborts it."""
    obstore.put(
        store,
        key,
        cast("Any", data),
        use_multipart=True,
        chunk_size=part_size(nbytes),
        max_concurrency=PARTS_AT_ONCE,
    )


def pieces(data: memoryview, progress: Callable[[int], None]) -> Iterator[memoryview]:
    """Yield the pieces of `data`, and report each as soon as the next is asked for."""
    for piece in cut(data, PIECE):
        yield piece
        progress(len(piece))


def status(error: Exception) -> int:
    """Return the HTTP status of an error; 0 if there was no answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def code(error: Exception) -> str:
    """Return the store's error code; empty if the answer has none."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _deletion(store: "ObjectStore", name: str) -> Callable[[], None]:
    return lambda: obstore.delete(store, name)


def _etag(meta: "ObjectMeta | PutResult") -> str:
    """Return one text for both: some stores tell versions apart by ETag, others by version."""
    return json.dumps([meta["e_tag"], meta["version"]])


def _update(etag: str) -> "UpdateVersion":
    e_tag, version = json.loads(etag)
    found: UpdateVersion = {}
    if e_tag is not None:
        found["e_tag"] = e_tag
    if version is not None:
        found["version"] = version
    return found
