"""Makes one exact source readable on this node: own slots, other nodes' slots, or a commit.

What is missing here is copied into files of the arena, at the offsets that it has in its source,
and verified against the source's checksums. Local ranks share the result.
"""

import mmap
import os
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import xxhash

from spotelastic_checkpoints import peers
from spotelastic_checkpoints.arena import HEADER, Arena
from spotelastic_checkpoints.commits import Commits, folder
from spotelastic_checkpoints.errors import RestoreFailed, StorageUnavailable
from spotelastic_checkpoints.layout import SHARED
from spotelastic_checkpoints.peers import Peer
from spotelastic_checkpoints.wire import (
    Commit,
    Inventory,
    Item,
    Piece,
    Read,
    RestoreSet,
    Resume,
    Shelf,
)

AT_ONCE = 4
"""Ranges in flight."""
STORE_PATIENCE = 60.0
"""Seconds that the store may be away during a restore."""

T = TypeVar("T")
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a node can read from."""

    arena: Arena
    commits: Callable[[], Commits]
    node: str
    token: str


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one source file."""

    offset: int
    length: int


def spans(items: Iterable[Item], most: int = peers.RANGE) -> Iterator[Span]:
    """Pure: ranges that cover the items, neighbours together, none longer than `most`."""
    start = end = -1
    for item in sorted(items, key=lambda item: item.offset):
        if start >= 0 and item.offset - end <= 4096:
            end = max(end, item.offset + item.length)
            continue
        yield from _cut(start, end, most)
        start, end = item.offset, item.offset + item.length
    yield from _cut(start, end, most)


def _cut(start: int, end: int, most: int) -> Iterator[Span]:
    if start >= 0:
        for offset in range(start, end, most):
            yield Span(offset, min(most, end - offset))


def wanted(item: Item, ranks: Sequence[int]) -> bool:
    return item.rank == SHARED or item.rank in ranks


class Staging:
    """Files of the arena that hold copies of a source until all local ranks have read them."""

    def __init__(self, arena: Arena, ident: int) -> None:
        self._arena = arena
        self._prefix = f"restore-{ident}-"

    def copy(self, name: str, items: Sequence[Item], read: Callable[[Span], bytes]) -> list[Piece]:
        """`read` is called from several threads."""
        path = self._arena.folder / f"{self._prefix}{name}"
        size = max((item.offset + item.length for item in items), default=0)
        if not size:
            return []
        with path.open("wb+") as file:
            os.truncate(file.fileno(), size)
            memory = memoryview(mmap.mmap(file.fileno(), size))

            def fetch(span: Span) -> None:
                memory[span.offset : span.offset + span.length] = read(span)

            with ThreadPoolExecutor(AT_ONCE) as pool:
                for done in [pool.submit(fetch, span) for span in spans(items)]:
                    done.result()
        for item in items:
            data = memory[item.offset : item.offset + item.length]
            if xxhash.xxh3_64_hexdigest(data) != item.checksum:
                raise RestoreFailed(f"{name}: {item.fqn} does not match its checksum")
        return [Piece(str(path), item) for item in items]

    def remove(self) -> None:
        for path in self._arena.folder.glob(f"{self._prefix}*"):
            path.unlink(missing_ok=True)


def from_store(
    commits: Commits, staging: Staging, commit: Commit, ranks: Sequence[int]
) -> tuple[list[Piece], int]:
    """Pieces, and the world size that saved."""
    manifests = _patient(lambda: commits.checkpoint(commit))
    pieces: list[Piece] = []
    for content in manifests:
        key = f"{folder(commit)}/{content.file}"

        def read(span: Span, key: str = key) -> bytes:
            data = _patient(lambda: commits.storage.read(key, span.offset, span.length))
            if len(data) != span.length:
                raise RestoreFailed(
                    f"{commits.storage.url}/{key} is shorter than its manifest says"
                )
            return data

        items = [item for item in content.items if wanted(item, ranks)]
        pieces += staging.copy(content.file, items, read)
    return pieces, manifests[0].world_size


def from_memory(
    arena: Arena, staging: Staging, resume: Resume, ranks: Sequence[int], node: str, token: str
) -> tuple[list[Piece], int]:
    """From own slots what is there, the rest from the holders that are left."""
    save = Inventory(resume.incarnation, resume.step, resume.layout)
    pieces: dict[Key, Piece] = {}
    shelves: list[tuple[str, Shelf]] = []
    shared = world_size = 0
    for slot, header in arena.sealed():
        if (header.incarnation, header.step, header.layout) == msgspec.structs.astuple(save):
            shared, world_size = header.shared, header.world_size
            for item in slot.items(header):
                moved = msgspec.structs.replace(item, offset=item.offset + HEADER)
                pieces.setdefault(item.key, Piece(str(slot.path), moved))
    complaints: list[str] = []
    if not shared or _count_shared(pieces) < shared:
        for holder in resume.holders:
            if holder.node != node and holder.daemon:
                try:
                    shelves += _shelves(holder.daemon, save, token)
                except RestoreFailed as error:
                    complaints.append(str(error))
    for _, shelf in shelves:
        shared, world_size = shelf.shared, shelf.world_size
    parts = share(shelves, pieces, ranks)
    with ThreadPoolExecutor(max(1, len(parts))) as pool:
        copies = [
            pool.submit(_copy, staging, address, token, shelf, items)
            for address, shelf, items in parts
        ]
        for copy in copies:
            for piece in copy.result():
                pieces[piece.item.key] = piece
    if not shared or _count_shared(pieces) < shared:
        reason = "; ".join(complaints) or "its holders have overwritten it"
        raise RestoreFailed(f"step {resume.step} is no longer whole in memory: {reason}")
    return [piece for piece in pieces.values() if wanted(piece.item, ranks)], world_size


def share(
    shelves: Sequence[tuple[str, Shelf]], have: Mapping[Key, Piece], ranks: Sequence[int]
) -> list[tuple[str, Shelf, list[Item]]]:
    """Pure: what to ask whom for, so that every holder sends about as much."""
    holding: dict[Key, list[tuple[int, Item]]] = defaultdict(list)
    for number, (_, shelf) in enumerate(shelves):
        for item in shelf.items:
            if item.key not in have and wanted(item, ranks):
                holding[item.key].append((number, item))
    load = [0] * len(shelves)
    parts: list[list[Item]] = [[] for _ in shelves]
    for copies in sorted(holding.values(), key=lambda copies: -copies[0][1].length):
        number, item = min(copies, key=lambda copy: load[copy[0]])
        load[number] += item.length
        parts[number].append(item)
    return [
        (address, shelf, items)
        for (address, shelf), items in zip(shelves, parts, strict=True)
        if items
    ]


def _shelves(address: str, save: Inventory, token: str) -> list[tuple[str, Shelf]]:
    with closing(Peer(address, token)) as peer:
        return [(address, shelf) for shelf in peer.inventory(save)]


def _copy(
    staging: Staging, address: str, token: str, shelf: Shelf, items: Sequence[Item]
) -> list[Piece]:
    with closing(Peer(address, token)) as peer, closing(Peer(address, token)) as other:
        idle: queue.SimpleQueue[Peer] = queue.SimpleQueue()
        idle.put(peer)
        idle.put(other)

        def read(span: Span) -> bytes:
            taken = idle.get()
            try:
                request = Read(shelf.rank, shelf.generation, span.offset, span.length)
                return taken.read(request)
            finally:
                idle.put(taken)

        # A rank may have sealed the same step twice.
        name = f"{address}-rank-{shelf.rank}-{shelf.generation}"
        return staging.copy(name, items, read)


def _count_shared(pieces: Mapping[Key, Piece]) -> int:
    return sum(piece.item.rank == SHARED for piece in pieces.values())


def _patient(call: Callable[[], T]) -> T:
    """Until the store is back; a restore has nothing better to do."""
    deadline = time.monotonic() + STORE_PATIENCE
    wait = 0.2
    while True:
        try:
            return call()
        except StorageUnavailable as error:
            if time.monotonic() + wait > deadline:
                raise RestoreFailed(str(error)) from error
        time.sleep(wait)
        wait = min(2 * wait, 5.0)


def restore(
    ident: int, resume: Resume, ranks: Sequence[int], source: Source
) -> tuple[RestoreSet, Staging]:
    """Synchronous; raises `RestoreFailed`, and leaves nothing behind then."""
    staging = Staging(source.arena, ident)
    try:
        if resume.kind == "store":
            commit = Commit(resume.epoch, resume.step)
            pieces, world_size = from_store(source.commits(), staging, commit, ranks)
        else:
            pieces, world_size = from_memory(
                source.arena, staging, resume, ranks, source.node, source.token
            )
    except BaseException:
        staging.remove()
        raise
    return RestoreSet(ident, resume.step, world_size, tuple(pieces)), staging
