"""Reads and writes kept files in a run's storage.

All calls block, and none retries.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from spotelastic_checkpoints.commit.latest import LatestObject
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.errors import RestoreFailed, StorageRefused
from spotelastic_checkpoints.files.kept import (
    INDEXES,
    FilePiece,
    Index,
    KeptFile,
    digest,
    index_key,
    inside,
    piece_key,
    pieces_of,
    whole,
)
from spotelastic_checkpoints.protocol_version import of_newer_format
from spotelastic_checkpoints.storage.object_store import Storage

_INDEX = re.compile(rf"{INDEXES}(0|[1-9]\d*)/([1-9]\d*)\.json")


@dataclass(frozen=True, slots=True)
class FileStore:
    """The kept files of one storage."""

    storage: Storage

    def epoch(self) -> int:
        """Return the newest epoch that was claimed."""
        latest, _ = LatestObject(self.storage).read()
        return latest.epoch if latest is not None else 0

    def indexes(self, rank: int | None = None, below: float = math.inf) -> list[Index]:
        """Return the indexes of a rank, or of all ranks, that count, of epochs below that one.

        What was kept before a fresh start does not. Raises `StorageRefused` for one that cannot be
        read.
        """
        latest, _ = LatestObject(self.storage).read()
        begins = latest.begins if latest is not None else 0
        found = []
        for key in self.storage.keys(INDEXES if rank is None else f"{INDEXES}{rank}/"):
            match = _INDEX.fullmatch(key)
            if match is None or not begins <= int(match[2]) < below:
                continue
            if (blob := self.storage.get(key)) is not None:
                found.append(self._decoded(blob.data, key, int(match[1]), int(match[2])))
        return found

    def kept(self) -> dict[int, Index]:
        """Return what counts of each rank."""
        by_rank: dict[int, list[Index]] = {}
        for index in self.indexes():
            by_rank.setdefault(index.rank, []).append(index)
        found = ((rank, whole(indexes)) for rank, indexes in by_rank.items())
        return {rank: index for rank, index in found if index is not None}

    def _decoded(self, data: bytes, key: str, rank: int, epoch: int) -> Index:
        url = f"{self.storage.url}/{key}"
        if newer := of_newer_format(data, url):
            raise StorageRefused(newer)
        try:
            index = from_json(data, Index)
        except msgspec.MsgspecError as error:
            raise StorageRefused(f"{url} was not written by spotelastic: {error}") from None
        sound = all(inside(path) and file.is_sound for path, file in index.files.items())
        if not sound or (index.rank, index.epoch) != (rank, epoch):
            raise StorageRefused(f"{url} names files that no node can have kept")
        return index

    def write(self, index: Index) -> None:
        """Write an index, after the pieces that it names."""
        data = memoryview(msgspec.json.encode(index))
        self.storage.put(index_key(index.rank, index.epoch), data)

    def put(self, rank: int, piece: FilePiece, data: memoryview) -> None:
        """Write a piece of a file."""
        self.storage.put(piece_key(rank, piece), data)

    def pieces(self, rank: int, file: KeptFile) -> Iterator[bytes]:
        """Yield a file's bytes. Raises `RestoreFailed` where they are not there, or damaged."""
        for piece in file.pieces:
            data = bytearray(piece.nbytes)
            key = piece_key(rank, piece)
            count = self.storage.read(key, 0, memoryview(data))
            if count < piece.nbytes or digest(memoryview(data)) != piece.digest:
                what = "is damaged" if count else "is not there"
                raise RestoreFailed(f"{self.storage.url}/{key} {what}")
            yield bytes(data)

    def drop(self, index: Index, pieces: Iterable[FilePiece]) -> None:
        """Delete pieces that the index, which is written, does not name any more.

        Must never happen: a piece goes that a successor names. It reads the index after its round
        has claimed a later epoch. So nothing is deleted unless this one is still the last: then any
        successor reads the index as it is now.
        """
        keys = sorted({piece_key(index.rank, piece) for piece in pieces} - _named(index))
        if keys and self.epoch() == index.epoch:
            self.storage.delete(keys)

    def sweep(self, index: Index) -> None:
        """Delete what earlier epochs have left of a rank, and this index does not name.

        It has taken in their indexes. Does nothing once a later epoch is claimed.
        """
        own = pieces_of(index.rank)
        pieces = set(self.storage.keys(own)) - _named(index)
        old = [key for key in pieces if _epoch_in(key.removeprefix(own)) <= index.epoch]
        old += [
            key
            for key in self.storage.keys(f"{INDEXES}{index.rank}/")
            if (match := _INDEX.fullmatch(key)) and int(match[2]) < index.epoch
        ]
        if old and self.epoch() == index.epoch:
            self.storage.delete(sorted(old))


def _named(index: Index) -> set[str]:
    files = index.files.values()
    return {piece_key(index.rank, piece) for file in files for piece in file.pieces}


def _epoch_in(name: str) -> int:
    return int(re.match(r"\d*", name)[0] or 0)  # type: ignore[index]
