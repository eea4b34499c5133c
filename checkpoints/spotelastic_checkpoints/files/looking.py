"""Looks at what a script has written into its folder, without reading any of it.

Nobody writes results into histories, caches and environments of Python: these are left out.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = frozenset(
    {".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints"}
)
"""Names of folders that hold no results."""
UNFINISHED = ".spotelastic-"
"""Beginning of the names of files that are being put back."""
LINK, FOLDER, EXECUTABLE, OTHER = "link", "folder", "executable", "other"
"""What is no plain file: a symbolic link, an empty folder, a file that may be run, and pipes,
sockets and devices.
"""
LATEST_TIME = (1 << 62) - 1
"""Nanoseconds since the epoch; what is later is taken for this."""
MOST = 20_000
"""Entries of a folder that are looked at."""
SHARED = ("nfs", "ceph", "lustre", "gpfs", "beegfs", "cifs", "smb3", "9p", "fuse")
"""Beginnings of the types of file systems that other nodes may see as well."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What tells one state of a file from another."""

    nbytes: int
    mtime: int
    """Nanoseconds since the epoch."""
    inode: int
    kind: str = ""
    """What it is, where it is no plain file."""
    changed: float = 0.0
    """When anything of it changed last, by the file system (epoch s). Nothing can set this."""

    @classmethod
    def of(cls, found: os.stat_result) -> "Seen":
        """Return it for a file's `stat`."""
        mtime = max(-LATEST_TIME, min(found.st_mtime_ns, LATEST_TIME))
        return cls(found.st_size, mtime, found.st_ino, _kind(found.st_mode), found.st_ctime)

    def same(self, other: "Seen | None") -> bool:
        """Return whether nothing was written in between."""
        mine = self.nbytes, self.mtime, self.inode, self.kind
        theirs = other and (other.nbytes, other.mtime, other.inode, other.kind)
        return mine == theirs


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return EXECUTABLE if mode & stat.S_IXUSR else ""
    return LINK if stat.S_ISLNK(mode) else FOLDER if stat.S_ISDIR(mode) else OTHER


def is_environment(path: Path) -> bool:
    """Return whether a folder is a Python environment.

    Such a folder is large, and nobody writes to it.
    """
    return (path / "pyvenv.cfg").is_file()


def walk(
    folder: Path,
    left_out: Callable[[Path], bool] = lambda _: False,
    failed: Callable[[OSError], object] = lambda _: None,
) -> Iterator[os.DirEntry[str]]:
    """Yield what is below a folder, except for folders that hold something. No link is followed.

    A folder that is not there has none. `failed` is called where one cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        failed(error)
        return
    for entry in found:
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        path = Path(entry.path)
        if is_folder:
            if entry.name not in LEFT_OUT and not is_environment(path) and not left_out(path):
                holds = False
                for each in walk(path, left_out, failed):
                    holds = True
                    yield each
                if not holds:
                    yield entry
        elif not entry.name.startswith(UNFINISHED):
            yield entry


def kept_files(
    workdir: Path, folders: Iterable[str], ours: Collection[Path] = ()
) -> tuple[dict[str, Seen], str]:
    """Return the files of the folders, and why these are not all.

    The files are given by their paths relative to `workdir`. The text has a line for each reason
    why some are missing; it is "" if none is. Nothing in `ours` is the script's.

    A folder that is a symbolic link itself is what the user has put in its place.
    """
    found: dict[str, Seen] = {}
    problems: list[str] = []

    def failed(error: OSError) -> None:
        name = _shown(str(error.filename))
        problems.append(f"{name} cannot be read, and is not kept: {error.strerror}")

    for folder in folders:
        root = (workdir / folder).resolve()
        for entry in walk(root, lambda path: path in ours, failed):
            if len(found) == MOST:
                problems.append(f"{folder} holds more than {MOST} files: the others are not kept")
                return found, "\n".join(problems)
            path = f"{folder}/{Path(entry.path).relative_to(root).as_posix()}"
            if not path.isprintable():
                problems.append(f"{_shown(path)} is not kept: its name cannot be printed")
                continue
            try:
                found[path] = Seen.of(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            except OSError as error:
                failed(error)
    return found, "\n".join(problems)


def _shown(path: str) -> str:
    return path if path.isprintable() else repr(path)


def left_behind(
    workdir: Path, since: float, kept: Collection[str], ours: Collection[Path]
) -> list[tuple[str, int]]:
    """Return the files written since that time (epoch s) that nobody keeps, with their sizes.

    `kept` are folders that are, `ours` those that are not the script's. Python's own files and
    those of folders that begin with a dot are no results. Nothing is told of a folder that is too
    large to be looked at.
    """
    not_its = {workdir / folder for folder in kept} | set(ours)

    def left_out(path: Path) -> bool:
        return path.name.startswith(".") or path in not_its

    found = []
    for count, entry in enumerate(walk(workdir, left_out)):
        if count == MOST:
            return []
        name = entry.name
        if name.startswith(".") or name.endswith((".py", ".pyc", ".lock")):
            continue
        try:
            seen = Seen.of(entry.stat(follow_symlinks=False))
        except OSError:
            continue
        if seen.changed >= since and seen.nbytes and seen.kind in ("", EXECUTABLE):
            found.append((Path(entry.path).relative_to(workdir).as_posix(), seen.nbytes))
    return found


def is_shared(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether the folder is on a file system that other nodes may see, too."""
    try:
        device = os.stat(folder).st_dev  # noqa: PTH116
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    types = (
        line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2] == number
    )
    return any(each.startswith(SHARED) for each in types)
