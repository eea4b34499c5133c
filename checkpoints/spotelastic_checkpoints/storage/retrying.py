"""Wraps a storage so that each call is repeated while the store does not answer."""

from collections.abc import Callable, Iterable

from spotelastic_checkpoints.storage.object_store import Blob, Storage, unseen
from spotelastic_checkpoints.storage.outage_retry import OutageRetry


class RetryingStorage:
    """A `Storage` whose calls are repeated; thread-safe where `storage` is.

    A repeated conditional write may find the result of its own first try, and return False. The
    caller has to look what is stored then.
    """

    def __init__(self, storage: Storage, retry: OutageRetry) -> None:
        self.url = storage.url
        self.weaker = storage.weaker
        self._storage = storage
        self._ask = retry.ask

    def get(self, key: str) -> Blob | None:
        return self._ask(lambda: self._storage.get(key))

    def read(self, key: str, offset: int, target: memoryview) -> int:
        return self._ask(lambda: self._storage.read(key, offset, target))

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        self._ask(lambda: self._storage.put(key, data, progress))

    def create(self, key: str, data: bytes) -> bool:
        return self._ask(lambda: self._storage.create(key, data))

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        return self._ask(lambda: self._storage.swap(key, data, etag))

    def keys(self, prefix: str = "") -> list[str]:
        return self._ask(lambda: self._storage.keys(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        return self._ask(lambda: self._storage.times(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        self._ask(lambda: self._storage.delete(names))

    def unfinished(self) -> list[str]:
        return self._ask(self._storage.unfinished)

    def abort_uploads(self, prefix: str) -> int:
        return self._ask(lambda: self._storage.abort_uploads(prefix))

    def close(self) -> None:
        self._storage.close()
