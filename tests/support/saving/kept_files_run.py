"""A run's storage and the folders of its nodes, for tests of kept files."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.files.keeping import Clocks, KeptFolders
from spotelastic_checkpoints.files.kept import PIECE, shown
from spotelastic_checkpoints.storage.folder import FolderStorage


@dataclass
class Time:
    """A clock that stands still until it is moved. Files get their times from it."""

    now: float = 1_000_000.0

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.now, lambda: self.now)


@dataclass
class Place:
    """A run's storage, and the folders of its nodes."""

    base: Path
    time: Time = field(default_factory=Time)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storage = FolderStorage(self.base / "storage")
        self.store = FileStore(self.storage)
        self.commits = Commits(self.storage, "run")

    def claim(self) -> int:
        return self.commits.claim().epoch

    def node(self, name: str, *folders: str, piece: int = PIECE) -> KeptFolders:
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        chosen = folders or ("out",)
        return KeptFolders(
            folder,
            chosen,
            name,
            lambda: self.store,
            self.told.append,
            self.time.clocks,
            piece=piece,
        )

    def write(self, node: str, path: str, data: bytes, mtime: float | None = None) -> Path:
        """Write a file. No two of a test have the same time unless it is given."""
        self.time.now += 0.001
        file = self.base / node / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        at = int((self.time.now if mtime is None else mtime) * 1e9)
        os.utime(file, ns=(at, at))
        return file

    def kept(self) -> dict[str, bytes]:
        """What `fetch` would bring."""
        found = self.store.kept()
        return {path: b"".join(self.store.pieces(rank, file)) for path, rank, file in shown(found)}
