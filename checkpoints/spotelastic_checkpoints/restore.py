"""Makes one exact source readable on this node: own slots, other nodes' slots, or a commit.

What is missing here is copied into files of the arena, at the offsets that it has in its source,
and verified against the source's checksums. Local ranks share the result.
"""

import mmap
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

from spotelastic_checkpoints import peers
from spotelastic_checkpoints.arena import HEADER, Arena
from spotelastic_checkpoints.commits import Commits, folder
from spotelastic_checkpoints.errors import RestoreFailed, StorageUnavailable
from spotelastic_checkpoints.layout import SHARED
from spotelastic_checkpoints.manifest import Manifest
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

STORE_RANGE, STORE_AT_ONCE = 64 << 20, 8
"""Bytes per request to the store, and requests in flight."""
PEER_AT_ONCE = 2
"""Requests in flight to each peer."""
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


def spans(items: Iterable[Item], most: int) -> Iterator[Span]:
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


Reader = Callable[[Span, memoryview], None]
"""Fills memory with a range of one source file; called from several threads."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is to be copied from one source file."""

    name: str
    items: Sequence[Item]
    read: Reader


class Staging:
    """Files of the arena that hold copies of a source until all local ranks have read them."""

    def __init__(self, arena: Arena, ident: int) -> None:
        self._arena = arena
        self._prefix = f"restore-{ident}-"

    def copy(self, parts: Iterable[Part], at_once: int, most: int) -> list[Piece]:
        """Everything, in ranges of `most` bytes, `at_once` of them in flight; verified."""
        targets = [(part, *self._target(part)) for part in parts if part.items]
        with ThreadPoolExecutor(at_once) as pool:
            ranges = [
                pool.submit(part.read, span, memory[span.offset : span.offset + span.length])
                for part, _, memory in targets
                for span in spans(part.items, most)
            ]
            _all_done(ranges)
            _all_done(
                [
                    pool.submit(_verify, part, item, memory)
                    for part, _, memory in targets
                    for item in part.items
                ]
            )
        return [Piece(str(path), item) for part, path, _ in targets for item in part.items]

    def remove(self) -> None:
        for path in self._arena.folder.glob(f"{self._prefix}*"):
            path.unlink(missing_ok=True)

    def _target(self, part: Part) -> tuple[Path, memoryview]:
        path = self._arena.folder / f"{self._prefix}{part.name}"
        size = max(item.offset + item.length for item in part.items)
        # All of it at once: memory that is not there is an error here, and a crash later.
        self._arena.allocate(path, size)
        with path.open("rb+") as file:
            return path, memoryview(mmap.mmap(file.fileno(), size))


def _all_done(futures: Sequence["Future[None]"]) -> None:
    try:
        for future in as_completed(futures):
            future.result()
    finally:
        for future in futures:
            future.cancel()


def _verify(part: Part, item: Item, memory: memoryview) -> None:
    """A second look tells what was damaged on the way from what lies damaged in the source."""
    data = memory[item.offset : item.offset + item.length]
    if xxhash.xxh3_64_hexdigest(data) == item.checksum:
        return
    part.read(Span(item.offset, item.length), data)
    if xxhash.xxh3_64_hexdigest(data) != item.checksum:
        raise RestoreFailed(f"{part.name}: {item.fqn} does not match its checksum")


def from_store(
    commits: Commits, staging: Staging, commit: Commit, ranks: Sequence[int]
) -> tuple[list[Piece], int]:
    """Pieces, and the world size that saved."""
    manifests = _patient(lambda: commits.checkpoint(commit))

    def part(content: Manifest) -> Part:
        key = f"{folder(commit)}/{content.file}"

        def read(span: Span, target: memoryview) -> None:
            if _patient(lambda: commits.storage.read(key, span.offset, target)) != span.length:
                raise RestoreFailed(
                    f"{commits.storage.url}/{key} is shorter than its manifest says"
                )

        return Part(content.file, [i for i in content.items if wanted(i, ranks)], read)

    pieces = staging.copy(map(part, manifests), STORE_AT_ONCE, STORE_RANGE)
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
    with ExitStack() as connections:
        parts = [
            _peer_part(address, token, shelf, items, connections)
            for address, shelf, items in share(shelves, pieces, ranks)
        ]
        at_once = max(1, PEER_AT_ONCE * len(parts))
        for piece in staging.copy(parts, at_once, peers.RANGE):
            pieces[piece.item.key] = piece
    if not shared or _count_shared(pieces) < shared:
        reason = "; ".join(complaints) or "its holders have overwritten it"
        raise RestoreFailed(f"step {resume.step} is no longer whole in memory: {reason}")
    return [piece for piece in pieces.values() if wanted(piece.item, ranks)], world_size


def share(
    shelves: Sequence[tuple[str, Shelf]], have: Mapping[Key, Piece], ranks: Sequence[int]
) -> list[tuple[str, Shelf, list[Item]]]:
    """Pure: what to ask whom for, so that every holder sends about as much, and each of them
    neighbours, which travel together."""
    holding: dict[Key, list[tuple[int, Item]]] = defaultdict(list)
    for number, (_, shelf) in enumerate(shelves):
        for item in shelf.items:
            if item.key not in have and wanted(item, ranks):
                holding[item.key].append((number, item))
    alike: dict[tuple[int, ...], list[list[tuple[int, Item]]]] = defaultdict(list)
    for copies in holding.values():
        alike[tuple(number for number, _ in copies)].append(copies)
    load = [0] * len(shelves)
    parts: list[list[Item]] = [[] for _ in shelves]
    for holders in sorted(alike, key=lambda holders: (len(holders), holders)):
        group = sorted(alike[holders], key=lambda copies: copies[0][1].offset)
        total = sum(copies[0][1].length for copies in group)
        quotas = _level([load[number] for number in holders], total)
        turn = 0
        for copies in group:
            while turn < len(quotas) - 1 and quotas[turn] <= 0:
                turn += 1
            number, item = copies[turn]
            quotas[turn] -= item.length
            load[number] += item.length
            parts[number].append(item)
    return [
        (address, shelf, items)
        for (address, shelf), items in zip(shelves, parts, strict=True)
        if items
    ]


def _level(loads: Sequence[int], total: int) -> list[float]:
    """How `total` more is shared out so that the smallest loads come to one level."""
    ordered = sorted(loads)
    level = 0.0
    for count in range(1, len(ordered) + 1):
        level = (sum(ordered[:count]) + total) / count
        if count == len(ordered) or level <= ordered[count]:
            break
    return [max(0.0, level - load) for load in loads]


def _shelves(address: str, save: Inventory, token: str) -> list[tuple[str, Shelf]]:
    with closing(Peer(address, token)) as peer:
        return [(address, shelf) for shelf in peer.inventory(save)]


def _peer_part(
    address: str, token: str, shelf: Shelf, items: list[Item], connections: ExitStack
) -> Part:
    idle: queue.SimpleQueue[Peer] = queue.SimpleQueue()
    for _ in range(PEER_AT_ONCE):
        idle.put(connections.enter_context(closing(Peer(address, token))))

    def read(span: Span, target: memoryview) -> None:
        taken = idle.get()
        try:
            taken.read(Read(shelf.rank, shelf.generation, span.offset, span.length), target)
        finally:
            idle.put(taken)

    # A rank may have sealed the same step twice.
    return Part(f"{address}-rank-{shelf.rank}-{shelf.generation}", items, read)


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
