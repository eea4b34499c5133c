"""Writes kept files into a folder.

Must never happen: something outside of the folder is written to. A path from the storage has plain
names only, and each of its folders is opened by itself, so that no symbolic link is followed. A
file gets its name when it is whole.
"""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.files.kept import KeptFile, inside
from spotelastic_checkpoints.files.looking import EXECUTABLE, FOLDER, LINK, UNFINISHED, Seen

_IN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def place(root: Path, path: str, file: KeptFile, data: Iterable[bytes]) -> Seen:
    """Write a file, a link or an empty folder at a path below `root`. Returns what is there then.

    Replaces what is there in one step. Raises `CheckpointsError` for a path that is not below it,
    and `OSError`.
    """
    if not inside(path):
        raise CheckpointsError(f"{path!r} is no path within a folder")
    with _folder_of(root, path) as (folder, name):
        if file.kind == FOLDER:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            os.close(os.open(name, _IN, dir_fd=folder))  # raises where something else is there
            return Seen.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
        new = f"{UNFINISHED}{secrets.token_hex(8)}"
        try:
            if file.link:
                os.symlink(file.link, new, dir_fd=folder)
            else:
                mode = 0o777 if file.kind == EXECUTABLE else 0o666
                with os.fdopen(os.open(new, _NEW, mode, dir_fd=folder), "wb") as written:
                    for piece in data:
                        written.write(piece)
            times = file.mtime, file.mtime
            os.utime(new, ns=times, dir_fd=folder, follow_symlinks=False)
            found = Seen.of(os.stat(new, dir_fd=folder, follow_symlinks=False))
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise
    return found


def seen_at(root: Path, path: str) -> Seen | None:
    """Return what is at a path below `root`; None if nothing is. No link is followed.

    Raises `OSError` where something else than a folder is in the way.
    """
    try:
        with _folder_of(root, path, make=False) as (folder, name):
            return Seen.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


def is_there(root: Path, path: str, there: Seen, file: KeptFile) -> bool:
    """Return whether what was seen at a path is this file, by its size and time."""
    if LINK in (there.kind, file.link and LINK):
        return there.kind == LINK and link_at(root, path) == file.link
    kind = file.kind or ""
    if FOLDER in (there.kind, kind):
        return there.kind == kind
    return (there.nbytes, there.mtime, there.kind) == (file.nbytes, file.mtime, kind)


@contextmanager
def opened(root: Path, path: str) -> Iterator[int]:
    """Open a file below `root` for reading. No link is followed. Raises `OSError`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with _folder_of(root, path, make=False) as (folder, name):
        descriptor = os.open(name, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def link_at(root: Path, path: str) -> str:
    """Return what a symbolic link below `root` refers to. Raises `OSError`."""
    with _folder_of(root, path, make=False) as (folder, name):
        return os.readlink(name, dir_fd=folder)


@contextmanager
def _folder_of(root: Path, path: str, *, make: bool = True) -> Iterator[tuple[int, str]]:
    """Open the folder of a path below `root`, one step after the other."""
    *folders, name = path.split("/")
    if make:
        root.mkdir(parents=True, exist_ok=True)
    at = os.open(root, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(each, dir_fd=at)
            inner = os.open(each, _IN, dir_fd=at)
            os.close(at)
            at = inner
        yield at, name
    finally:
        os.close(at)
