"""Makes copies of the folder that a script runs in, and finds what it has written there.

Each act has a copy: the user's own files stay as they are, and a node that is started anew has none
of what another one has written, as in a cluster.
"""

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from spotelastic_checkpoints.files.looking import LEFT_OUT, is_environment, walk

from spotelastic.errors import UsageError
from spotelastic.model.counting import size

MOST = 1 << 30
"""Bytes up to which a folder is copied."""


def check(folder: Path) -> None:
    """Raise `UsageError` where the folder is too large to be copied for each act."""
    found = sum(file.stat().st_size for file in _files(folder) if not file.is_symlink())
    if found > MOST:
        raise UsageError(
            f"{folder} holds {size(found)}: a rehearsal runs in copies of it, so that your files "
            "stay as they are. Move data out of it, or link to them"
        )


Stamps = dict[str, tuple[int, int]]
"""Size and time of each file of a copy, before it was used."""


def copy(folder: Path, to: Path) -> Stamps:
    """Copy a folder. Environments of Python are linked, and histories and caches left out.

    So are sockets and pipes. Raises `UsageError` for what cannot be copied.
    """

    def ignored(where: str, names: list[str]) -> set[str]:
        return {name for name in names if name in LEFT_OUT or not _is_copied(Path(where) / name)}

    try:
        shutil.copytree(folder, to, symlinks=True, ignore=ignored, ignore_dangling_symlinks=True)
    except shutil.Error as error:
        source, _, why = error.args[0][0]
        raise UsageError(
            f"a rehearsal runs in a copy of this folder, and {source} cannot be copied: {why}"
        ) from None
    for link in to.rglob("*"):
        if link.is_symlink() and not link.exists():  # a link that is relative to its place
            original = folder / link.relative_to(to)
            if original.exists():
                link.unlink()
                link.symlink_to(original.resolve())
    for entry in folder.iterdir():
        if is_environment(entry):
            (to / entry.name).symlink_to(entry.resolve())
    return _stamps(to)


def written(before: Stamps, used: Path) -> list[str]:
    """Return the files of a used copy that are new or were written to, relative to it."""
    return sorted(name for name, stamp in _stamps(used).items() if before.get(name) != stamp)


def _stamps(folder: Path) -> Stamps:
    found = {}
    for file in _files(folder):
        its = file.stat()
        found[file.relative_to(folder).as_posix()] = its.st_size, its.st_mtime_ns
    return found


def _is_copied(path: Path) -> bool:
    kind = path.lstat().st_mode
    known = stat.S_ISDIR(kind) or stat.S_ISREG(kind) or stat.S_ISLNK(kind)
    return known and not is_environment(path)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in (Path(entry.path) for entry in walk(folder)) if path.is_file())
