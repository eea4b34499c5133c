"""Stores the objects of the local cloud's buckets as files, which outlive the cloud.

An object is a plain file named after its key where possible, so the checkpoints of a run are an
ordinary folder. A write goes to a temporary name and is renamed, so no file is ever incomplete.
Nothing is flushed to disk: files outlive processes, but perhaps not a crash of the machine.
"""

import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

_WRITING = ".writing"
"""Folder, beside the buckets, of files that are not complete yet. No bucket has such a name."""
_MARK = "%"
"""Suffix of an object's file if a folder has the same name; quoted keys never end in it."""
_GOES_ON = "%-"
"""Suffix of a piece of a name that is too long for one file name."""
_LONGEST = 200
SMALL = 1 << 20
"""Most bytes of an object that is also kept in memory."""
_PLAIN = " !@#$&'()*+,;=:[]{}^"
"""Characters that are not quoted, besides those that quoting never touches."""


class Content:
    """The contents of an object, read from its file on demand; moto takes it for a file.

    Small contents also stay in memory once read: such objects are replaced while others read them,
    and readers get what was there when they asked. Reading a large one fails, as from a closed
    file, once the file is gone or replaced. S3 then answers with an error, and clients ask again.
    """

    def __init__(self, path: Path, data: bytes | None = None) -> None:
        self.path = path
        self._data = data if data is not None and len(data) <= SMALL else None
        found = path.stat()
        self.size, self.written_at = found.st_size, found.st_mtime
        self._identity = _identity(found)
        self._reader = threading.local()  # several requests may read the object at once

    def seek(self, position: int) -> int:
        """Set the position of the next read in this thread."""
        self._reader.at = position
        return position

    def read(self, size: int = -1) -> bytes:
        """Read from the position of this thread."""
        at = getattr(self._reader, "at", 0)
        if self._data is None and self.size <= SMALL:
            with self._opened() as file:
                self._data = file.read()
        if self._data is not None:
            data = self._data[at : None if size < 0 else at + size]
        else:
            with self._opened() as file:
                file.seek(at)
                data = file.read(size)
        self._reader.at = at + len(data)
        return data

    def close(self) -> None:
        """Delete a file that never got its name."""
        if self.path.parent.name == _WRITING:
            self.path.unlink(missing_ok=True)

    def _opened(self) -> IO[bytes]:
        for path in (self.path, _marked(self.path)):
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                file = path.open("rb", buffering=0)
                if _identity(os.fstat(file.fileno())) == self._identity:
                    return file
                file.close()
        raise ValueError(f"{self.path} has been replaced")


class KeptBuckets:
    """A folder of buckets, used by one cloud at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = threading.RLock()
        """Held while an object and its file are changed."""
        self._numbers = itertools.count()
        shutil.rmtree(root / _WRITING, ignore_errors=True)  # left by a cloud that was killed
        (root / _WRITING).mkdir(parents=True)

    def add(self, bucket: str) -> None:
        """Create a bucket's folder."""
        (self.root / bucket).mkdir(exist_ok=True)

    def drop(self, bucket: str) -> None:
        """Delete a bucket's folder."""
        shutil.rmtree(self.root / bucket, ignore_errors=True)

    def objects(self, bucket: str) -> Iterator[tuple[str, Content]]:
        """Yield every object's key and contents."""
        its = self.root / bucket
        for folder, _, files in os.walk(its):
            for file in files:
                path = Path(folder, file)
                yield key_of(path.relative_to(its)), Content(path)

    def write(self, data: bytes) -> Content:
        """Write a complete file, without a name yet."""
        path = self.root / _WRITING / str(next(self._numbers))
        try:
            path.write_bytes(data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return Content(path, bytes(data))

    def place(self, bucket: str, key: str, content: Content) -> None:
        """Give the file its object's name; it replaces the object."""
        with self.lock:
            path = self.root / bucket / path_of(key)
            self._make_folder(path.parent, self.root / bucket)
            if path.is_dir():
                path = _marked(path)
            content.path.rename(path)
            content.path = path

    def remove(self, bucket: str, key: str) -> None:
        """Remove the object's file, and folders that are empty then."""
        with self.lock:
            path = self.root / bucket / path_of(key)
            for each in (path, _marked(path)):
                with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    each.unlink()
            folder = path.parent
            with suppress(OSError):  # it is not empty, or does not exist
                while folder != self.root / bucket:
                    folder.rmdir()
                    folder = folder.parent

    def _make_folder(self, folder: Path, bucket: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            for above in (folder, *folder.parents):
                if above != bucket and above.is_file():
                    above.rename(_marked(above))
            folder.mkdir(parents=True, exist_ok=True)


def names(root: Path) -> tuple[str, ...]:
    """Return the names of the buckets in the folder."""
    found = root.iterdir() if root.is_dir() else ()
    return tuple(sorted(path.name for path in found if path.name[0] != "." and path.is_dir()))


def path_of(key: str) -> Path:
    """Return the path of an object's file in its bucket, unless a folder has that name."""
    pieces: list[str] = []
    for part in key.split("/"):
        text = quote(part, safe=_PLAIN) or _MARK
        if text in (".", ".."):
            text = text.replace(".", "%2E")
        while len(text) > _LONGEST:
            pieces.append(text[:_LONGEST] + _GOES_ON)
            text = text[_LONGEST:]
        pieces.append(text)
    return Path(*pieces)


def key_of(path: Path) -> str:
    """Return the key of a file: the reverse of `path_of`."""
    parts, begun = [], ""
    for piece in path.parts:
        if piece.endswith(_GOES_ON):
            begun += piece.removesuffix(_GOES_ON)
        else:
            parts.append(unquote(begun + piece.rstrip(_MARK)))
            begun = ""
    return "/".join(parts)


def _marked(path: Path) -> Path:
    return path.with_name(path.name + _MARK)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_ino, found.st_mtime_ns
