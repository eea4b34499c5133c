"""Defines the interface of a key-value store, as rounds, elections and the controller need it.

`etcd.py` and `memory.py` implement it, and one contract suite runs on both. Keys are str, values
are bytes. As in etcd, the store's revision grows by one with every committed write.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class StoredValue:
    """One key as it was read."""

    key: str
    data: bytes
    created: int
    """Store revision at which the key was created."""
    modified: int
    """Store revision at which it was last written."""
    lease: int = 0
    """Lease that the key ends with; 0 for none."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A precondition of a transaction: the key's create or modify revision equals `revision`.

    Revision 0 means that the key does not exist.
    """

    key: str
    field: Literal["created", "modified"]
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key, under a lease unless that is 0."""

    key: str
    data: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key."""

    key: str


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The result of a transaction."""

    succeeded: bool
    """Whether all preconditions held."""
    revision: int
    """Store revision that the transaction saw or made."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one key. `value` is None where it was deleted."""

    key: str
    value: StoredValue | None
    revision: int


@dataclass(frozen=True, slots=True)
class Reset:
    """All keys of the prefix at `revision`.

    The first item that every watch delivers. It comes again when the watch has missed history,
    because that was compacted.
    """

    values: tuple[StoredValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Health:
    """The watch's connection was lost (`healthy` False), or is back (True)."""

    healthy: bool


WatchItem = Change | Reset | Health


class Watch(Protocol):
    """A running watch on one prefix. Items go to the sink given to `Store.watch`."""

    def close(self) -> None:
        """End the watch."""


Sink = Callable[[Sequence[WatchItem]], None]
"""Receives batches of watch items, in order, from the watch's own thread; must not block."""


class Store(Protocol):
    """A key-value store. Each call has a deadline and raises `errors.Unavailable` when it passes.

    After `Unavailable` from a write the outcome is unknown: read before you write again.
    """

    def get(self, key: str) -> StoredValue | None:
        """Return the key's value; None where it does not exist."""

    def range(self, prefix: str) -> tuple[tuple[StoredValue, ...], int]:
        """Return all keys with this prefix, sorted, and the revision at which they were read."""
        ...

    def put(self, key: str, data: bytes, lease: int = 0) -> int:
        """Write a key and return the new revision.

        Raises `errors.LeaseLost` when the lease is gone.
        """
        ...

    def delete(self, key: str) -> bool:
        """Delete a key. Returns whether it existed."""

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> TransactionResult:
        """Make all writes, or none where a precondition does not hold."""
        ...

    def grant(self, ttl: float) -> int:
        """Grant a lease of `ttl` seconds and return its id. etcd rounds up to whole seconds."""
        ...

    def refresh(self, lease: int, timeout: float | None = None) -> float:
        """Renew a lease. Returns the seconds it now has, or 0 when it is gone.

        `timeout` (s) replaces the usual deadline of a call.
        """
        ...

    def revoke(self, lease: int) -> None:
        """End a lease, which deletes its keys."""

    def watch(self, prefix: str, sink: Sink) -> Watch:
        """Deliver a `Reset` with all keys of the prefix, then every change, over reconnections."""
        ...

    def close(self) -> None:
        """End all watches and close the connection."""
