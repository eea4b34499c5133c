"""Says which files of a script are kept, as values, and which version of a file counts (pure).

    files/index/<rank>/<epoch>.json   what the node of that rank has kept: an `Index`
    files/<rank>/<epoch>/<digest>     a piece of a file, up to 16 MiB, named by its content

Each node writes under its own rank (GROUP_RANK) and the epoch of its round, and nowhere else. So
two nodes never write the same object, and one that was left out of the run writes where its
successor does not. What counts is the index of the highest epoch, which begins with all that the
ones before it have.

Must never happen:

- A version is lost that its successor has never seen. A node that leaves may write its last version
  after its successor has read the index. An index says how much of the earlier ones it knows
  (`taken`). What is later than that stays, under a name of its own where the successor has another
  version: `metrics.csv~12`, by the epoch that wrote it.
- Something is written outside of the script's folder because of what the storage says (`inside`).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

import msgspec
import xxhash

from spotelastic_checkpoints.protocol_version import FORMAT
from spotelastic_checkpoints.types import Value

FOLDER = "files/"
"""Prefix of all that is kept of a script's files."""
INDEXES = f"{FOLDER}index/"
PIECE = 16 << 20
"""Bytes of a piece; the last one of a file has the rest."""


class FilePiece(Value, frozen=True, array_like=True):
    """A part of a file, and which epoch has stored it."""

    digest: str
    nbytes: int
    epoch: int


class KeptFile(Value, frozen=True):
    """One version of a file."""

    nbytes: int
    mtime: int
    """When the script wrote it, in nanoseconds since the epoch, by the clock of its node."""
    pieces: tuple[FilePiece, ...] = ()
    link: str = ""
    """What it refers to, if it is a symbolic link."""
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """"executable", or "folder" for one that is empty; not written where it is neither."""
    epoch: int = 0
    """The epoch under which this version was kept."""
    revision: int = 0
    """The revision of that epoch's index that it came with."""
    aside: bool = False
    """Whether another version has its name, so that it is not put back."""

    @property
    def is_sound(self) -> bool:
        """Whether a node can have kept it."""
        pieces = all(p.digest.isalnum() and 0 < p.nbytes <= PIECE for p in self.pieces)
        return pieces and abs(self.mtime) < 1 << 62

    @property
    def content(self) -> tuple[object, ...]:
        """What is equal for files that hold the same."""
        pieces = tuple((piece.digest, piece.nbytes) for piece in self.pieces)
        return self.link, self.kind or "", pieces


class Index(Value, frozen=True):
    """All that is kept of one rank's files."""

    rank: int
    epoch: int
    node: str
    """The node that wrote it."""
    revision: int = 0
    """Grows with each write by this epoch."""
    files: Mapping[str, KeptFile] = {}
    """By their paths, relative to the script's folder."""
    taken: Mapping[int, int] = {}
    """The revision of each earlier epoch's index that this one has taken in."""
    leaving: float = 0.0
    """Until when (epoch s) the node, which is under notice, may still write; 0: it has written its
    last, or is under none.
    """
    version: int = FORMAT


def index_key(rank: int, epoch: int) -> str:
    """Return the key of a rank's index of an epoch."""
    return f"{INDEXES}{rank}/{epoch}.json"


def piece_key(rank: int, piece: FilePiece) -> str:
    """Return the key of a piece of a rank's file."""
    return f"{pieces_of(rank)}{piece.epoch}/{piece.digest}"


def pieces_of(rank: int) -> str:
    """Return the prefix of the keys of all of a rank's pieces."""
    return f"{FOLDER}{rank}/"


def digest(data: bytes | memoryview) -> str:
    """Return the name of a piece that holds this."""
    return xxhash.xxh3_128_hexdigest(data)


def whole(indexes: Iterable[Index]) -> Index | None:
    """Return what counts of a rank's indexes: the last one, with what came too late for it."""
    result: Index | None = None
    for index in sorted(indexes, key=lambda index: index.epoch):
        result = index if result is None else _followed(result, index)
    return result


def _followed(before: Index, last: Index) -> Index:
    """Return the last index, with what `before` got after it was taken in."""
    files = dict(last.files)
    for path, late in before.files.items():
        if late.revision <= last.taken.get(late.epoch, -1):
            continue
        mine = files.get(path)
        if mine is None or mine.epoch <= late.epoch:
            files[path] = late
        elif mine.content != late.content:
            files |= set_aside(path, late)
    return msgspec.structs.replace(last, files=files, taken=taken(before, last))


def set_aside(path: str, version: KeptFile) -> dict[str, KeptFile]:
    """Return a version under a name of its own, because another one has its name."""
    if version.aside:
        return {path: version}
    name = f"{path}~{version.epoch}"
    return {name: msgspec.structs.replace(version, aside=True)}


def taken(before: Index, own: Index) -> dict[int, int]:
    """Return how much `own` has taken in of each epoch, once it has all of `before`."""
    found = dict(own.taken)
    for epoch, revision in {**before.taken, before.epoch: before.revision}.items():
        if epoch < own.epoch:
            found[epoch] = max(revision, found.get(epoch, -1))
    return found


def inside(path: str) -> bool:
    """Return whether a path leads into the folder that it is relative to, and nowhere else."""
    parts = path.split("/")
    return "\0" not in path and not {"", ".", ".."} & set(parts)


def leads_inside(path: str, link: str, folders: Iterable[str]) -> bool:
    """Return whether a link at `path` refers to something in the same one of the folders.

    Only plain names may be in it: what ".." leads to depends on further links.
    """
    target = str(PurePosixPath(path).parent / link)
    return inside(link) and any(within(path, each) and within(target, each) for each in folders)


def within(path: str, folder: str) -> bool:
    """Return whether a path is below a folder."""
    return path.startswith(f"{folder}/")


def shown(indexes: Mapping[int, Index]) -> Iterator[tuple[str, int, KeptFile]]:
    """Yield all kept files of all ranks as (path, rank, file), by path.

    The lowest rank's has the plain name. What others hold under the same name is `NAME.rank-N`
    where it is something else, and left out where it is the same.
    """
    first: dict[str, KeptFile] = {}
    found: dict[str, tuple[int, KeptFile]] = {}
    for rank, index in sorted(indexes.items()):
        for path, file in index.files.items():
            same = first.setdefault(path, file)
            if same is file:
                found[path] = rank, file
            elif same.content != file.content:
                found[f"{path}.rank-{rank}"] = rank, file
    for path, (rank, file) in sorted(found.items()):
        yield path, rank, file
