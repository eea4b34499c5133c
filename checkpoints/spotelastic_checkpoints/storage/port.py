"""The object store port: what the commit protocol needs of S3, and may assume.

Assumed of every adapter: a write that has returned is seen by every later read and listing, and
conditional writes are atomic; an adapter whose store cannot keep this says so in `weaker`. Keys are
relative to the root that the adapter was opened with, with "/" between their parts. A prefix is
empty or ends in "/". After `StorageUnavailable` the outcome of a write is unknown.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Blob:
    """An object as read. `etag` names its content for `swap`."""

    data: bytes
    etag: str


def unseen(_: int) -> None:
    """For writes whose progress nobody looks at."""


class Storage(Protocol):
    """Every call raises `StorageUnavailable` (try again later) or `StorageRefused` (do not)."""

    url: str
    weaker: str
    """What the store does not keep of the above, in one line for people; empty: it keeps all."""

    def get(self, key: str) -> Blob | None: ...

    def read(self, key: str, offset: int, target: memoryview) -> int:
        """Fills `target`; returns how many bytes: fewer only where the object ends, none where it
        is missing."""
        ...

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        """Whole or not at all. A shard is only ever written again with the same bytes.

        `progress` is told of bytes as they are handed to the network.
        """
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

    def times(self, prefix: str = "") -> dict[str, float]:
        """When each key under the prefix was written: epoch seconds, by the store's clock."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Keys that are missing are none of its business."""
        ...

    def unfinished(self) -> list[str]:
        """Keys of multipart uploads that were begun and neither completed nor aborted."""
        ...

    def abort_uploads(self, prefix: str) -> int:
        """Ends unfinished uploads under the prefix, or of the key; how many there were."""
        ...

    def close(self) -> None: ...
