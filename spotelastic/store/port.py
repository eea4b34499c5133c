"""The key-value store port: what rounds, elections and the controller need of etcd.

Two adapters implement it: `store/etcd.py` and `store/memory.py`; one contract suite runs on both.
Values are bytes; keys are str. Revisions grow by one with every committed write, as in etcd.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class StoredValue:
    """One key as read: `created` and `modified` are store revisions; `lease` is 0 for none."""

    key: str
    data: bytes
    created: int
    modified: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """A precondition: the key's create or mod revision equals `revision` (0: the key is absent)."""

    key: str
    field: Literal["created", "modified"]
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    data: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Of a transaction: whether all preconditions held, and the store revision it saw or made."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. `value` is None for a deletion."""

    key: str
    value: StoredValue | None
    revision: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The watch missed history (compaction): `values` is the whole prefix at `revision`.

    Also the first thing that every watch delivers, so that a reader has one way in.
    """

    values: tuple[StoredValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Health:
    """The watch's connection was lost (healthy False) or is back (True), since `at` (steady)."""

    healthy: bool
    at: float


WatchItem = Change | Reset | Health


class Watch(Protocol):
    """A running watch on one prefix. Items arrive through the callback given to `watch`."""

    def close(self) -> None: ...


class Sink(Protocol):
    """Receives batches of watch items, in order, from the watch's own thread; must not block."""

    def __call__(self, items: Sequence[WatchItem]) -> None: ...


class Store(Protocol):
    """Every call has a deadline (seconds) and raises `errors.Unavailable` when it passes.

    After `Unavailable` from a write the outcome is unknown: read again before writing again.
    """

    def get(self, key: str) -> StoredValue | None: ...

    def range(self, prefix: str) -> tuple[tuple[StoredValue, ...], int]:
        """All keys under the prefix, sorted by key, and the revision they were read at."""
        ...

    def put(self, key: str, data: bytes, lease: int = 0) -> int:
        """Returns the new revision. Raises `errors.LeaseLost` when the lease is gone."""
        ...

    def delete(self, key: str) -> bool: ...

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> TransactionResult:
        """All writes, or none when a precondition fails."""
        ...

    def grant(self, ttl: float) -> int:
        """A new lease; `ttl` in seconds (etcd rounds up to whole seconds)."""
        ...

    def refresh(self, lease: int, timeout: float | None = None) -> float:
        """Seconds the lease now has; 0 when it is gone. `timeout` overrides the call's deadline."""
        ...

    def revoke(self, lease: int) -> None: ...

    def watch(self, prefix: str, sink: Sink) -> Watch:
        """Delivers a `Reset` with what is there, then every change, resuming over reconnects."""
        ...

    def close(self) -> None: ...
