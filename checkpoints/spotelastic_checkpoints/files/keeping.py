"""Keeps the files that a script writes into its folders, and puts them back on the next node.

One thread at a time calls it. It takes a look now and then, and uploads what has changed since and
is at rest. What is at rest is read once: its size, time and inode say that it is the same.

Must never happen:

- Half of a file takes the place of a whole one. A file that changes while it is read is left for
  the next look. One that never rests, such as a log, is kept as it is once it has gone on for a
  while, and only if it has grown behind what is kept of it.
- A version that this node has not had is lost. It goes aside where this node has another one.
- A file is taken for deleted that was not put back.
"""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotelastic_checkpoints.errors import CheckpointsError, StorageUnavailable
from spotelastic_checkpoints.files import placing
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.files.kept import (
    PIECE,
    FilePiece,
    Index,
    KeptFile,
    digest,
    leads_inside,
    set_aside,
    taken,
    whole,
    within,
)
from spotelastic_checkpoints.files.looking import EXECUTABLE, FOLDER, LINK, OTHER, Seen, kept_files

RESTLESS = 30.0
"""Seconds for which a file has changed without a rest until it is kept as it is."""
AGAIN = 20.0
"""A file that took a second to store is read again after so many."""
WRITTEN_AFTER = 64 << 20
"""Bytes of uploaded pieces after which the index is written, though the look is not over."""
LEAVER_WITHIN = 3.0
"""Seconds for which files wait for the last ones of a node that leaves."""
TOLD = 100
"""Most problems of single files that are told."""
SWEPT_AFTER = 600.0
"""Seconds of a round after which what earlier ones have left is deleted. Nodes that have left it
are gone by then.
"""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What tells the time: that of files, and one that never jumps."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic


CLOCKS = Clocks()


class KeptFolders:
    """The folders of one node whose files are kept."""

    def __init__(
        self,
        workdir: Path,
        folders: Iterable[str],
        node: str,
        store: Callable[[], FileStore],
        tell: Callable[[str], None],
        clocks: Clocks = CLOCKS,
        ours: Collection[Path] = (),
        piece: int = PIECE,
    ) -> None:
        """`folders` are relative to `workdir`; what is in `ours` is not the script's.

        `tell` is told what people should know. `piece` is the most bytes of a piece.
        """
        self._ours = ours
        self._piece = piece
        self._workdir = workdir
        self.folders = tuple(folders)
        self.node = node
        self._store = store
        self._tell = tell
        self._clocks = clocks
        self._told: set[str] = set()
        self.rank = -1
        self.epoch = 0
        self.leaving = 0.0
        """Until when (epoch s) this node may write, once it is under notice; 0: see `Index`."""
        self._begun = 0.0
        """When the epoch began here; infinite once its storage was swept."""
        self._index: Index | None = None
        """What this node has written in this epoch."""
        self._stored: dict[str, Seen] = {}
        """What files were like when they were stored or put back."""
        self._had: dict[str, KeptFile] = {}
        """The versions that this node has stored or put back last."""
        self._left: dict[str, KeptFile] = {}
        """Stored versions in whose place the node has a newer file."""
        self._bad: set[str] = set()
        """Files that could not be read, which was told. Nobody waits for them."""
        self._restless: dict[str, float] = {}
        """Since when files have changed without a rest."""
        self._again: dict[str, float] = {}
        """When files may be read again."""
        self._pieces: dict[str, FilePiece] = {}
        """Pieces of this rank that are in the storage, by their digests."""

    def begin(self, rank: int, epoch: int) -> None:
        """Go on as the node of that rank, under that epoch; 0: nothing can be stored yet."""
        if (rank, epoch) == (self.rank, self.epoch):
            return
        if rank != self.rank:
            self._pieces.clear()
        self.rank, self.epoch = rank, epoch
        self._index, self._begun = None, self._clocks.steady()

    # -- putting back -----------------------------------------------------------------------------

    def put_back(self, rank: int, *, missing: bool = False) -> None:
        """Put the files of a rank back where there is no newer one.

        With `missing` only where there is none, because the script runs. Raises
        `StorageUnavailable`, after which the rest can be put back by the same call.
        """
        store = self._store()
        index = whole(store.indexes(rank))
        until = self._clocks.steady() + LEAVER_WITHIN
        while index is not None and not missing and self._still_comes(index, until):
            time.sleep(0.1)
            index = whole(store.indexes(rank))
        if index is None:
            return
        self._learn(index)
        for path, file in index.files.items():
            if file.aside or self._folder(path) is None:
                continue
            try:
                self._put_back(store, index, path, missing)
            except StorageUnavailable:
                raise
            except (CheckpointsError, OSError) as error:
                self._tell_once(f"{path} could not be put back: {error}")

    def _still_comes(self, index: Index, until: float) -> bool:
        """Whether the node before this one is about to write what its script has written last."""
        leaves = index.leaving > self._clocks.wall() and index.node != self.node
        return leaves and self._clocks.steady() < until

    def _put_back(self, store: FileStore, index: Index, path: str, missing: bool) -> None:
        file = index.files[path]
        root, rest = self._place(path)
        there = placing.seen_at(root, rest)
        if there is not None:
            if placing.is_there(root, rest, there, file):
                self._stored[path], self._had[path] = there, file
                return
            had = self._had.get(path)
            if had is not None and had.content == file.content:
                return  # what the script has made of it since
            if missing or there.mtime >= file.mtime:
                # What this node's daemon before has stored, the node has had.
                known = self._had if index.node == self.node else self._left
                known[path] = file
                return
        if file.link and not leads_inside(path, file.link, self.folders):
            return
        self._stored[path] = placing.place(root, rest, file, store.pieces(index.rank, file))
        self._had[path] = file

    # -- keeping ----------------------------------------------------------------------------------

    def keep(self, rest: float, go: Callable[[], bool] = lambda: True) -> bool:
        """Store what has changed, and has not been written to for `rest` seconds.

        `go` is called before each piece; nothing more is stored once it returns False. Returns
        whether all that is there is stored. Raises `StorageUnavailable`.
        """
        seen, problem = kept_files(self._workdir, self.folders, self._ours)
        for line in problem.splitlines():
            self._tell_once(line)
        changed = {p: now for p, now in seen.items() if not now.same(self._stored.get(p))}
        away = [path for path in self._stored if path not in seen]
        gone = [path for path in away if not problem or self._is_gone(path)]
        for path in self._restless.keys() - changed.keys():
            del self._restless[path]
        if not self.epoch:
            return not changed and not gone
        upload = _Upload(self._store(), go)
        versions: dict[str, KeptFile] = {}
        for path, now in changed.items():
            version = self._version(upload, path, now, rest)
            if version is not None:
                versions[path] = version
            if upload.nbytes > WRITTEN_AFTER:
                self._write(upload.store, versions, (), changed)
                upload.nbytes, versions = 0, {}
            if upload.stopped:
                break
        index = self._index
        if versions or gone or self.leaving != (index.leaving if index is not None else 0.0):
            self._write(upload.store, versions, gone, changed)
        if self._index is not None and self._clocks.steady() > self._begun + SWEPT_AFTER:
            self._sweep(upload.store)
        return all(p in self._bad or now.same(self._stored.get(p)) for p, now in changed.items())

    def _is_gone(self, path: str) -> bool:
        """Whether a file is away that was not found in a look that may not have found all."""
        try:
            return placing.seen_at(*self._place(path)) is None
        except OSError:
            return False

    def _version(self, upload: "_Upload", path: str, now: Seen, rest: float) -> KeptFile | None:
        """Upload a file and return its version; None if it is not kept, or not yet."""
        root, name = self._place(path)
        try:
            self._bad.discard(path)
            if now.kind in (LINK, OTHER):
                link = placing.link_at(root, name) if now.kind == LINK else ""
                if leads_inside(path, link, self.folders):
                    return KeptFile(0, now.mtime, link=link)
                what = "a link that leads out of the folder" if link else "no file"
                self._stored[path] = now
                self._tell_once(f"{path} is not kept: it is {what}")
                return None
            # A time that is still to come says nothing: the file is taken to rest.
            rests = not rest or not -1 < self._clocks.wall() - now.mtime / 1e9 < rest
            if rest and not self._is_due(path, rests):
                return None
            if now.kind == FOLDER:
                return KeptFile(0, now.mtime, kind=FOLDER)
            begun = self._clocks.steady()
            with placing.opened(root, name) as file:
                version = self._read(upload, file, path, now, rests)
            self._again[path] = begun + AGAIN * (self._clocks.steady() - begun)
            if not rests:
                self._restless[path] = begun
            elif version is not None:
                self._restless.pop(path, None)
            return version
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._tell_once(f"{path} is not kept: {error.strerror or error}")
                self._bad.add(path)
            return None

    def _is_due(self, path: str, rests: bool) -> bool:
        now = self._clocks.steady()
        since = self._restless.setdefault(path, now)
        return now >= self._again.get(path, now) and (rests or now >= since + RESTLESS)

    def _read(
        self, upload: "_Upload", file: int, path: str, now: Seen, rests: bool
    ) -> KeptFile | None:
        begun = Seen.of(os.fstat(file))
        if begun.kind not in ("", EXECUTABLE):
            return None  # it has taken the place of a file meanwhile
        old = self._had.get(path) or self._left.get(path)
        pieces, grown = [], old is not None
        for number, start in enumerate(range(0, begun.nbytes, self._piece)):
            data = read_piece(file, start, min(self._piece, begun.nbytes - start))
            if data is None:
                return None
            grown = grown and old is not None and _begins_with(data, old, number)
            if not rests and old is not None and not grown:
                self._tell_rewritten(path)
                return None
            name = digest(data)
            if name not in self._pieces:
                piece = FilePiece(name, len(data), self.epoch)
                if not upload.put(self.rank, piece, data):
                    return None
                self._pieces[name] = piece
            pieces.append(self._pieces[name])
        ended = Seen.of(os.fstat(file))
        if rests and not (ended.same(begun) and begun.same(now)):
            if self._clocks.steady() >= self._restless.get(path, math.inf) + RESTLESS:
                self._tell_rewritten(path)
            return None
        if old is not None and grown and begun.nbytes >= old.nbytes:
            self._had[path] = old
        elif not rests and old is not None:
            self._tell_rewritten(path)
            return None
        kind = EXECUTABLE if begun.kind else msgspec.UNSET
        return KeptFile(begun.nbytes, begun.mtime, tuple(pieces), kind=kind)

    def _tell_rewritten(self, path: str) -> None:
        self._tell_once(
            f"{path} changes all the time: it is kept once it has not changed for as long as "
            "it takes to read it"
        )

    def _write(
        self,
        store: FileStore,
        versions: dict[str, KeptFile],
        gone: Iterable[str],
        seen: dict[str, Seen],
    ) -> None:
        """Write the index with these versions, and without the files that the script deleted."""
        before = self._current(store)
        index = msgspec.structs.replace(
            before, revision=before.revision + 1, node=self.node, leaving=self.leaving
        )
        files = dict(index.files)
        for path, version in versions.items():
            theirs, had = files.get(path), self._had.get(path)
            new = msgspec.structs.replace(version, epoch=self.epoch, revision=index.revision)
            unseen = had is None or theirs is None or theirs.content != had.content
            if theirs is not None and unseen and theirs.content != new.content:
                files |= set_aside(path, theirs)
            files[path] = versions[path] = new
        for path in gone:
            had = self._had.get(path)
            if path in files and had is not None and files[path].content == had.content:
                del files[path]
        index = msgspec.structs.replace(index, files=files)
        if files != before.files or index.leaving != before.leaving:
            store.write(index)
            self._index = index
        for path, version in versions.items():
            self._had[path], self._stored[path] = version, seen[path]
            self._left.pop(path, None)
        for path in gone:
            self._stored.pop(path, None)
            self._had.pop(path, None)
        unnamed = self._unnamed(index)
        if self._index is index:
            store.drop(index, [each for each in unnamed if each.epoch == self.epoch])

    def _sweep(self, store: FileStore) -> None:
        """Delete what earlier epochs have left, once this one's index has taken in theirs."""
        current = self._current(store)
        self._index = msgspec.structs.replace(current, revision=current.revision + 1)
        store.write(self._index)
        self._unnamed(self._index)
        store.sweep(self._index)
        self._begun = math.inf

    def _learn(self, index: Index) -> None:
        if index.rank == self.rank:
            files = index.files.values()
            self._pieces.update((piece.digest, piece) for file in files for piece in file.pieces)

    def _unnamed(self, index: Index) -> list[FilePiece]:
        """Forget the pieces that no file has any more, and return them."""
        named = {piece.digest for file in index.files.values() for piece in file.pieces}
        dropped = [piece for name, piece in self._pieces.items() if name not in named]
        for piece in dropped:
            del self._pieces[piece.digest]
        return dropped

    def _current(self, store: FileStore) -> Index:
        """Return this epoch's index, with what earlier epochs' nodes have stored meanwhile."""
        own = self._index
        found = store.indexes(self.rank, self.epoch + (own is None))
        earlier = whole(index for index in found if index.epoch < self.epoch)
        own = own or next((index for index in found if index.epoch == self.epoch), None)
        if own is None:
            own = Index(self.rank, self.epoch, self.node)
            if earlier is not None:
                known = taken(earlier, own)
                own = msgspec.structs.replace(own, files=earlier.files, taken=known)
        current = own if earlier is None else whole((earlier, own))
        assert current is not None
        self._learn(current)
        return current

    # -- places -----------------------------------------------------------------------------------

    def _folder(self, path: str) -> str | None:
        return next((each for each in self.folders if within(path, each)), None)

    def _place(self, path: str) -> tuple[Path, str]:
        """Return the folder that a file is in, and the file's path within it.

        If the folder is a link of the user's, what the link leads to is returned.
        """
        folder = self._folder(path)
        assert folder is not None
        return (self._workdir / folder).resolve(), path.removeprefix(f"{folder}/")

    def _tell_once(self, problem: str) -> None:
        if problem not in self._told and len(self._told) < TOLD:
            self._told.add(problem)
            self._tell(problem)


class _Upload:
    """The pieces that are stored in one look."""

    def __init__(self, store: FileStore, go: Callable[[], bool]) -> None:
        self.store = store
        self._go = go
        self.nbytes = 0
        self.stopped = False

    def put(self, rank: int, piece: FilePiece, data: bytes) -> bool:
        """Store a piece, if it may be."""
        self.stopped = self.stopped or not self._go()
        if not self.stopped:
            self.store.put(rank, piece, memoryview(data))
            self.nbytes += piece.nbytes
        return not self.stopped


def read_piece(file: int, start: int, nbytes: int) -> bytes | None:
    """Read a piece; None if the file has become shorter."""
    data = bytearray()
    while len(data) < nbytes:
        more = os.pread(file, nbytes - len(data), start + len(data))
        if not more:
            return None
        data += more
    return bytes(data)


def _begins_with(data: bytes, old: KeptFile, number: int) -> bool:
    """Return whether a piece begins with what an older version had in its place."""
    if number >= len(old.pieces):
        return True
    piece = old.pieces[number]
    return digest(data[: piece.nbytes]) == piece.digest
