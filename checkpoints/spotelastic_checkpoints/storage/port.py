"""The object store port: what the commit protocol needs of S3, and may assume.

Assumed of every adapter: a write that has returned is seen by every later read and listing, and
conditional writes are atomic. Keys are relative to the root that the adapter was opened with, with
"/" between their parts. After `StorageUnavailable` the outcome of a write is unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Blob:
    """An object as read. `etag` names its content for `swap`."""

    data: bytes
    etag: str


class Storage(Protocol):
    """Every call raises `StorageUnavailable` (try again later) or `StorageRefused` (do not)."""

    url: str

    def get(self, key: str) -> Blob | None: ...

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes; fewer only where the object ends, none where it is missing."""
        ...

    def put(self, key: str, data: memoryview) -> None:
        """Whole or not at all; the same key is only ever written with the same bytes."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """False when the key exists: of several writers exactly one succeeds."""
        ...

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        """Overwrites the content named by `etag`; False when it is another, or missing."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """All under the prefix, sorted."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Keys that are missing are none of its business."""
        ...

    def abort_uploads(self, prefix: str) -> int:
        """Ends unfinished multipart uploads under the prefix; how many there were."""
        ...

    def close(self) -> None: ...
