"""Any store that fsspec reaches by URL: Google Cloud Storage, Azure, and memory for tests."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import fsspec
import xxhash

from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.parts import PART, WHOLE, cut
from spotelastic_checkpoints.storage.port import Blob, unseen

PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
"""What brings a scheme."""
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


class FsspecStorage:
    """Creation is the store's own; a swap reads, compares and writes."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scheme, _, rest = self.url.partition("://")
        self.weaker = (
            f"{scheme}:// has no compare-and-swap through fsspec: two rounds that race for LATEST "
            "may both move it; never run two clusters on one root"
        )
        try:
            self._fs: Any = fsspec.filesystem(
                scheme, skip_instance_cache=True, use_listings_cache=False
            )
        except ImportError as error:
            package = PACKAGES.get(scheme, scheme)
            raise StorageRefused(f"{url} needs a package: pip install {package}") from error
        except Exception as error:
            raise StorageRefused(f"{url}: {error}") from error
        self._root = self._fs._strip_protocol(f"{scheme}://{rest}").rstrip("/")
        self._swapping = threading.Lock()

    def get(self, key: str) -> Blob | None:
        try:
            with self._explained(key):
                data = self._fs.cat_file(self._path(key))
        except FileNotFoundError:
            return None
        return Blob(data, _etag(data))

    def read(self, key: str, offset: int, target: memoryview) -> int:
        try:
            with self._explained(key):
                data = self._fs.cat_file(self._path(key), start=offset, end=offset + len(target))
        except FileNotFoundError:
            return 0
        target[: len(data)] = data
        return len(data)

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        with self._explained(key):
            if len(data) <= WHOLE:
                self._fs.pipe_file(self._path(key), bytes(data))
                progress(len(data))
                return
            file = self._fs.open(self._path(key), "wb")
            try:
                for part in cut(data, PART):
                    progress(file.write(part))
            except BaseException:
                # Closing would make an object of what has come so far.
                file.discard()
                file.closed = True
                raise
            file.close()

    def create(self, key: str, data: bytes) -> bool:
        try:
            with self._explained(key):
                self._fs.pipe_file(self._path(key), data, mode="create")
        except FileExistsError:
            return False
        return True

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        with self._swapping:
            found = self.get(key)
            if found is None or found.etag != etag:
                return False
            with self._explained(key):
                self._fs.pipe_file(self._path(key), data)
            return True

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(self.times(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        try:
            with self._explained(prefix):
                found = self._fs.find(self._path(prefix).rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
        return {name[len(self._root) + 1 :]: _written(entry) for name, entry in found.items()}

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                with self._explained(key):
                    self._fs.rm_file(self._path(key))
            except FileNotFoundError:
                pass

    def unfinished(self) -> list[str]:
        """The stores that are reached this way end them by themselves."""
        return []

    def abort_uploads(self, prefix: str) -> int:
        return 0

    def close(self) -> None:
        pass

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except PermissionError as error:
            raise StorageRefused(f"{self.url}/{what}: {error}") from error
        except Exception as error:
            raise StorageUnavailable(f"{self.url}/{what}: {error}") from error


def _written(entry: dict[str, Any]) -> float:
    """Epoch seconds; each file system has its own word for it. 0 where it has none."""
    told = next((entry[name] for name in _TIMES if entry.get(name)), 0.0)
    if isinstance(told, str):
        told = datetime.fromisoformat(told)
    return told.timestamp() if isinstance(told, datetime) else float(told)


def _etag(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
