"""Defines the interface of an object store, as the commit protocol needs it.

Every adapter has to guarantee that a write which has returned is seen by every later read and
listing, and that conditional writes are atomic. An adapter whose store cannot keep this says so in
`weaker`. Keys are relative to the root that the adapter was opened with, and have "/" between their
parts. A prefix is empty or ends in "/". After `StorageUnavailable` the outcome of a write is
unknown.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Blob:
    """An object's content. `etag` identifies that content for `swap`."""

    data: bytes
    etag: str


def get_checked(storage: "Storage", key: str, is_good: Callable[[bytes], bool]) -> Blob | None:
    """Return the object; one that is missing, or not good, is read a second time.

    What a store, a proxy or a network answered wrongly once must not count as lost or damaged.
    """
    blob = storage.get(key)
    return blob if blob is not None and is_good(blob.data) else storage.get(key)


def unseen(_: int) -> None:
    """Do nothing with the progress of a write."""


class Storage(Protocol):
    """An object store.

    Calls raise `StorageUnavailable` (try again later) or `StorageRefused` (do not).
    """

    url: str
    """URL of the root, for messages."""
    weaker: str
    """Which guarantee the store does not keep, in one line for people; empty if it keeps all."""

    def get(self, key: str) -> Blob | None:
        """Return the object; None where there is none."""

    def read(self, key: str, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset` on, and return the number of bytes.

        It is smaller only where the object ends, and 0 where there is no object.
        """
        ...

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        """Write the whole object, or nothing. A shard is only repeated with the same bytes.

        `progress` is called with the number of bytes as they are handed to the network.
        """
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Create the object.

        Returns False where it exists: of several writers exactly one succeeds.
        """
        ...

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        """Replace the content identified by `etag`.

        Returns False where it is another, or missing.
        """
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys with this prefix, sorted."""
        ...

    def times(self, prefix: str = "") -> dict[str, float]:
        """Return when each key with this prefix was written (epoch s, by the store's clock)."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Keys that do not exist are ignored."""
        ...

    def unfinished(self) -> list[str]:
        """Return the keys of multipart uploads that were neither completed nor aborted."""
        ...

    def abort_uploads(self, prefix: str) -> int:
        """Abort unfinished uploads of keys with this prefix, or of this key.

        Returns their number.
        """
        ...

    def close(self) -> None:
        """Close connections."""
