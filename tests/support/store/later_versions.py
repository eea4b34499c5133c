"""Uses the store as a node of a later version would: same protocol, more fields, unknown words.

Such a node writes fields and words that no code of this version knows. What it reads it
understands: its own words, and those of this version.
"""

import json
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from support.store.memory_store import MemoryStore

from spotelastic.model.protocol import PROTOCOL
from spotelastic.store.codec import encode
from spotelastic.store.port import (
    Change,
    Compare,
    Put,
    Reset,
    Sink,
    StoredValue,
    TransactionResult,
    Watch,
    WatchItem,
    Write,
)

NEW_WORD = "of tomorrow: "
NEW_FIELD = "tomorrow"
WORDS = {"cause", "source"}
"""Fields whose words a later version may add to."""

Translate = Callable[[Any], Any]


def tomorrows(value: Any) -> Any:
    """JSON as a later version writes it."""
    match value:
        case dict():
            words = _words(value)
            told = {
                name: f"{NEW_WORD}{each}" if name in words else tomorrows(each)
                for name, each in value.items()
            }
            if "protocol" in told:
                told["protocol"] = [PROTOCOL.major, PROTOCOL.minor + 1]
            return told | {NEW_FIELD: {"any": [1, "thing"]}}
        case list():
            return [tomorrows(each) for each in value]
    return value


def todays(value: Any) -> Any:
    """The same, as this version's decoder takes it: what a later version knows of it."""
    match value:
        case dict():
            words = _words(value)
            return {
                name: each.removeprefix(NEW_WORD) if name in words else todays(each)
                for name, each in value.items()
                if name != NEW_FIELD
            }
        case list():
            return [todays(each) for each in value]
    return value


def unreadable_rounds(value: Any, causes: Collection[str]) -> Any:
    """As a node finds them whose version expects something else in one of the fields."""
    found = "lineage" in value and value["cause"] in causes
    return value | {"pause": "a while"} if found else value


def _words(value: dict[str, Any]) -> set[str]:
    """The fields of this value whose words a later version may add to, and has not yet."""
    names = WORDS | {"kind"} if "seen_at" in value else WORDS  # of a notice, not of a source
    return {name for name in names & value.keys() if isinstance(value[name], str)}


class OtherVersionsStore:
    """Implements `port.Store`: a client of a store, for a node of another version."""

    def __init__(self, inner: MemoryStore, writes: Translate, reads: Translate) -> None:
        self._inner = inner
        self._writes, self._reads = writes, reads
        self.delete, self.grant, self.close = inner.delete, inner.grant, inner.close
        self.refresh, self.revoke = inner.refresh, inner.revoke
        self.cut, self.heal = inner.cut, inner.heal

    def get(self, key: str) -> StoredValue | None:
        return self._read(self._inner.get(key))

    def range(self, prefix: str) -> tuple[tuple[StoredValue, ...], int]:
        values, revision = self._inner.range(prefix)
        return tuple(filter(None, map(self._read, values))), revision

    def put(self, key: str, data: bytes, lease: int = 0) -> int:
        return self._inner.put(key, _mapped(data, self._writes), lease)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> TransactionResult:
        told = [
            Put(each.key, _mapped(each.data, self._writes), each.lease)
            if isinstance(each, Put)
            else each
            for each in writes
        ]
        return self._inner.commit(compares, told)

    def watch(self, prefix: str, sink: Sink) -> Watch:
        def deliver(items: Sequence[WatchItem]) -> None:
            sink([self._item(item) for item in items])

        return self._inner.watch(prefix, deliver)

    def _item(self, item: WatchItem) -> WatchItem:
        match item:
            case Reset(values, revision):
                return Reset(tuple(filter(None, map(self._read, values))), revision)
            case Change(key, value, revision):
                return Change(key, self._read(value), revision)
        return item

    def _read(self, value: StoredValue | None) -> StoredValue | None:
        if value is None:
            return None
        data = _mapped(value.data, self._reads)
        return StoredValue(value.key, data, value.created, value.modified, value.lease)


def _mapped(data: bytes, change: Translate) -> bytes:
    """Names of nodes, which are no JSON, stay as they are."""
    raw = zlib.decompress(data) if data.startswith(b"\x78") else data
    try:
        value = json.loads(raw)
    except ValueError:
        return data
    return encode(change(value)) if isinstance(value, dict) else data
