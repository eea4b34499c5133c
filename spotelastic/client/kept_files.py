"""Lists the files that a job's script has kept, and fetches them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.files import placing
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.files.kept import KeptFile, shown, within
from spotelastic_checkpoints.files.looking import FOLDER
from spotelastic_checkpoints.storage.object_store import Storage

from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.counting import counted, size

SMALL = 100_000_000
"""Bytes up to which `up` fetches kept files without being asked."""
IGNORED = ".gitignore"
"""Keeps what was fetched out of the code that the next `up` ships, and out of git."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A kept file."""

    path: str
    """Its path in the script's folder. `NAME.rank-N` is what another node holds under that name,
    `NAME~N` what a node had written that was left out of the run.
    """
    rank: int
    """The node that keeps it, by its group rank."""
    nbytes: int
    written: float
    """When the script wrote it; seconds since the epoch."""
    link: str = ""
    """What it refers to, if it is a symbolic link."""


@dataclass(slots=True)
class FetchedFiles:
    """What came of a fetch."""

    to: Path
    files: int = 0
    nbytes: int = 0
    same: int = 0
    """Files that were there already."""
    newer: list[str] = field(default_factory=list)
    """Files in whose place is a newer one, which was left."""

    @property
    def line(self) -> str:
        """What it is, for people."""
        told = f"{counted(self.files, 'file')} of the script, {size(self.nbytes)}: in {self.to}"
        if self.same:
            told += f"; as it was: {counted(self.same, 'file')}"
        if self.newer:
            told += f"; newer there, and left: {', '.join(self.newer)}"
        return told


def listed(storage: Storage) -> list[ListedFile]:
    """Return the kept files of all nodes, by path."""
    return [
        ListedFile(path, rank, file.nbytes, file.mtime / 1e9, file.link)
        for path, rank, file in shown(FileStore(storage).kept())
        if file.kind != FOLDER
    ]


def fetch(
    storage: Storage,
    to: Path,
    path: str | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> FetchedFiles:
    """Write kept files into the folder `to`, under their own paths: all, or one, or a folder's.

    A file that is there and newer is left. Raises `UsageError` if there are no such files, and
    `EnvironmentFailure` if one cannot be written.
    """
    store = FileStore(storage)
    wanted = chosen(list(shown(store.kept())), path)
    done = FetchedFiles(to)
    try:
        if not to.exists():
            to.mkdir(parents=True)
            (to / IGNORED).write_text("*\n")
        for name, rank, file in wanted:
            _fetch(store, done, name, rank, file, progress)
    except OSError as error:
        raise EnvironmentFailure(f"{to} cannot be written: {error.strerror or error}") from error
    return done


def chosen(
    files: Sequence[tuple[str, int, KeptFile]], path: str | None
) -> list[tuple[str, int, KeptFile]]:
    """Return the files that a path names, which may be a folder; without one, all of them."""
    folder = "" if path is None else path.rstrip("/")
    found = [each for each in files if folder in ("", each[0]) or within(each[0], folder)]
    if not found:
        what = "nothing is kept" if not files else f"{path} is not kept"
        raise UsageError(f"{what}: `spotelastic files` lists what is, and --output keeps folders")
    return found


def _fetch(
    store: FileStore,
    done: FetchedFiles,
    name: str,
    rank: int,
    file: KeptFile,
    progress: Callable[[int], object],
) -> None:
    there = placing.seen_at(done.to, name)
    if there is not None and placing.is_there(done.to, name, there, file):
        done.same += file.kind != FOLDER
    elif there is not None and not file.link and there.mtime > file.mtime:
        done.newer.append(name)
    else:
        for attempt in (1, 2):
            try:
                placing.place(done.to, name, file, store.pieces(rank, file))
            except RestoreFailed:
                # It was replaced while it was read.
                now = store.kept().get(rank)
                if attempt == 2 or now is None or name not in now.files:
                    raise
                file = now.files[name]
            else:
                break
        done.files, done.nbytes = done.files + (file.kind != FOLDER), done.nbytes + file.nbytes
    progress(file.nbytes)
