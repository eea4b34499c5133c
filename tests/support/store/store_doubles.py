"""A store in memory that keeps the port's promises, and a store whose calls a test intercepts."""

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from spotelastic_checkpoints.storage.object_store import Blob, Storage, unseen

WRITES = ("put", "create", "swap", "delete")

Around = Callable[[str, Callable[[], Any]], Any]
"""Told of each call: its name, and how to carry it out."""


class MemoryStorage:
    """Every write is atomic, and no two contents of a key share an etag."""

    url, weaker = "memory", ""

    def __init__(self, written: Callable[[str, "MemoryStorage"], None] | None = None) -> None:
        """`written` is told of every key as soon as it has another content."""
        self._blobs: dict[str, Blob] = {}
        self._etags = map(str, itertools.count())
        self._lock = threading.RLock()
        self._written = written

    def get(self, key: str) -> Blob | None:
        return self._blobs.get(key)

    def read(self, key: str, offset: int, target: memoryview) -> int:
        found = self._blobs.get(key)
        data = found.data[offset : offset + len(target)] if found is not None else b""
        target[: len(data)] = data
        return len(data)

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        self._write(key, bytes(data))
        progress(len(data))

    def create(self, key: str, data: bytes) -> bool:
        with self._lock:
            if key in self._blobs:
                return False
            self._write(key, data)
            return True

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        with self._lock:
            found = self._blobs.get(key)
            if found is None or found.etag != etag:
                return False
            self._write(key, data)
            return True

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in list(self._blobs) if key.startswith(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        return dict.fromkeys(self.keys(prefix), 0.0)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._blobs.pop(key, None)

    def unfinished(self) -> list[str]:
        return []

    def abort_uploads(self, prefix: str) -> int:
        return 0

    def close(self) -> None:
        pass

    def _write(self, key: str, data: bytes) -> None:
        with self._lock:
            self._blobs[key] = Blob(data, next(self._etags))
            if self._written is not None:
                self._written(key, self)


class Interposed:
    """`storage`, with each of its calls handed to `around`."""

    def __init__(self, storage: Storage, around: Around) -> None:
        self._storage = storage
        self._around = around

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if not callable(found):
            return found
        return lambda *arguments: self._around(name, lambda: found(*arguments))
