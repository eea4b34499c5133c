"""Uses a folder as an object store, on a local disk or on one that all nodes mount."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.object_store import Blob, unseen

PIECE = 16 << 20
"""Bytes between two reports of progress."""
_TEMPORARY = ".writing-"
"""Prefix of temporary files. Their final name and something random follow."""
_LOCK = ".lock"
"""Name of the file that swaps are locked by."""


class FolderStorage:
    """A folder as a `Storage`.

    Files are written under a temporary name and renamed. Creation is a hard link, and a swap
    happens under a lock.
    """

    weaker = ""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root
        with _explained(self.url):
            if root.exists() and not root.is_dir():  # a mistake, for which no retry is good
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.url)
            root.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Blob | None:
        with _explained(f"{self.url}/{key}"):
            try:
                data = (self._root / key).read_bytes()
            except FileNotFoundError:
                return None
        return Blob(data, xxhash.xxh3_128_hexdigest(data))

    def read(self, key: str, offset: int, target: memoryview) -> int:
        filled = 0
        with _explained(f"{self.url}/{key}"):
            try:
                with (self._root / key).open("rb") as file:
                    while filled < len(target):
                        count = os.preadv(file.fileno(), [target[filled:]], offset + filled)
                        if not count:
                            break
                        filled += count
            except FileNotFoundError:
                return 0
        return filled

    def put(self, key: str, data: memoryview, progress: Callable[[int], None] = unseen) -> None:
        with _explained(f"{self.url}/{key}"), self._written(key, data, progress) as temporary:
            temporary.rename(self._root / key)

    def create(self, key: str, data: bytes) -> bool:
        with _explained(f"{self.url}/{key}"), self._written(key, memoryview(data)) as temporary:
            try:
                os.link(temporary, self._root / key)
            except FileExistsError:
                return False
            return True

    def swap(self, key: str, data: bytes, etag: str) -> bool:
        with _explained(f"{self.url}/{key}"), self._locked():
            found = self.get(key)
            if found is None or found.etag != etag:
                return False
            self.abort_uploads(key)  # A process that was killed here held the lock, and left these.
            with self._written(key, memoryview(data)) as temporary:
                temporary.rename(self._root / key)
            return True

    def keys(self, prefix: str = "") -> list[str]:
        with _explained(prefix):
            return sorted(self._key(path) for path in self._files(prefix))

    def times(self, prefix: str = "") -> dict[str, float]:
        found = {}
        with _explained(prefix):
            for path in self._files(prefix):
                with suppress(FileNotFoundError):
                    found[self._key(path)] = path.stat().st_mtime
        return found

    def delete(self, keys: Iterable[str]) -> None:
        with _explained("a retired checkpoint"):
            for key in keys:
                (self._root / key).unlink(missing_ok=True)

    def unfinished(self) -> list[str]:
        with _explained(self.url):
            return sorted(key for key, _ in self._temporary(""))

    def abort_uploads(self, prefix: str) -> int:
        with _explained(prefix):
            left = [path for key, path in self._temporary(prefix) if key.startswith(prefix)]
            for path in left:
                path.unlink(missing_ok=True)
        return len(left)

    def close(self) -> None:
        pass

    def _files(self, prefix: str) -> Iterator[Path]:
        start = self._root / prefix
        found = start.rglob("*") if start.is_dir() else start.parent.glob(start.name + "*")
        for path in found:
            if not path.name.startswith(_TEMPORARY) and path.name != _LOCK and path.is_file():
                yield path

    def _temporary(self, prefix: str) -> Iterator[tuple[str, Path]]:
        """Yield the store's temporary files, with their keys.

        Such a file is being written, or was when its writer was killed.
        """
        for path in (self._root / prefix.rpartition("/")[0]).rglob(_TEMPORARY + "*"):
            rest = path.name.removeprefix(_TEMPORARY)
            yield self._key(path.with_name(rest.rpartition("-")[0] or rest)), path

    def _key(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    @contextmanager
    def _written(
        self, key: str, data: memoryview, progress: Callable[[int], None] = unseen
    ) -> Iterator[Path]:
        target = self._root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f"{_TEMPORARY}{target.name}-"
        descriptor, name = tempfile.mkstemp(prefix=prefix, dir=target.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for start in range(0, len(data), PIECE):
                    progress(file.write(data[start : start + PIECE]))
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._root / _LOCK).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise StorageRefused(f"{what}: {error.strerror} ({error.filename})") from error
    except OSError as error:
        raise StorageUnavailable(f"{what}: {error.strerror or error}") from error
