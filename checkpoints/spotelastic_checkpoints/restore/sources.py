"""One exact source as this node can have it: own slots, other nodes' slots, or a commit.

Opening it tells what there is. What is not in own slots is then fetched range by range, as local
ranks ask for it: once per node, verified, into one file of the arena that they share.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from spotelastic_checkpoints.commit.commit_protocol import Commits, folder
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format.layout import SHARED
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena, SlotHeader
from spotelastic_checkpoints.peers import transfers
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.messages import Inventory, Read, Shelf
from spotelastic_checkpoints.peers.transfers import Peer
from spotelastic_checkpoints.restore import fetch_units
from spotelastic_checkpoints.restore.fetch_units import CopyLocation, LocatedItem
from spotelastic_checkpoints.restore.fetcher import Fetcher, RangeSource, Reader
from spotelastic_checkpoints.storage.outage_retry import OutageRetry
from spotelastic_checkpoints.types import Commit, Holder, Item, RestoreSet, Resume

STORE_RANGE, STORE_AT_ONCE = 8 << 20, 8
"""Bytes per request to the store, and requests in flight."""
PEER_AT_ONCE = 2
"""Requests in flight to each peer."""
PEERS_AT_ONCE = 8
"""Peers that are asked at a time what they have."""

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Where a node can read from."""

    arena: Arena
    commits: Callable[[], Commits]
    node: str
    credentials: PeerCredentials
    warn: Callable[[str], None]
    """Told, in any thread, whom a restore does without, and why."""
    patience: OutageRetry
    """With the store."""


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source that is being read by local ranks."""

    restore_set: RestoreSet
    fetcher: Fetcher


def open_source(ident: int, resume: Resume, around: SourceContext) -> OpenSource:
    """Synchronous; raises `RestoreFailed`, or `StorageUnavailable` when the store stays away."""
    if resume.kind == "store":
        return _open_commit(ident, Commit(resume.epoch, resume.step), around)
    return _open_memory(ident, resume, around)


def _opened(
    ident: int,
    step: int,
    world_size: int,
    slots: Sequence[str],
    items: Iterable[tuple[Item, tuple[CopyLocation, ...]]],
    sources: Sequence[RangeSource],
    around: SourceContext,
) -> OpenSource:
    placed = fetch_units.placed(items)
    path = around.arena.folder / f"restore-{ident}"
    fetcher = Fetcher(path, placed, sources, readers=around.arena.workers)
    there = tuple(_described(found) for found in placed)
    described = RestoreSet(ident, step, world_size, tuple(slots), str(fetcher.path), there)
    return OpenSource(described, fetcher)


def _described(placed: LocatedItem) -> Item:
    """Checksums are the daemon's business."""
    item = placed.item
    return Item(
        item.fqn, item.path, item.dtype, item.shape, item.offsets, item.sizes, item.rank,
        item.offset, item.length,
    )  # fmt: skip


# -- the object store -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A commit's folder, as a source and as each of its readers."""

    commits: Commits
    name: str
    patience: OutageRetry
    lanes: int = STORE_AT_ONCE
    most: int = STORE_RANGE

    def open(self) -> Reader:
        return self

    def read(self, file: object, offset: int, target: memoryview) -> None:
        key = f"{self.name}/{file}"
        storage = self.commits.storage
        if self.patience.ask(lambda: storage.read(key, offset, target)) != len(target):
            raise RestoreFailed(f"{storage.url}/{key} is shorter than its manifest says")

    def abort(self) -> None:
        """Its requests have deadlines."""

    def close(self) -> None:
        """It is shared."""


def _open_commit(ident: int, commit: Commit, around: SourceContext) -> OpenSource:
    manifests = around.patience.ask(lambda: around.commits().checkpoint(commit))
    items = [
        (item, (CopyLocation(0, shard.name, item.offset),))
        for content in manifests
        for shard in content.shards
        for item in sorted(shard.items, key=lambda item: item.offset)
    ]
    source = CommitSource(around.commits(), folder(commit), around.patience)
    return _opened(ident, commit.step, manifests[0].world_size, (), items, [source], around)


def find_commit(step: int | None, before: Commit | None, around: SourceContext) -> Commit | None:
    """The newest in the store: at `step` alone, and older than `before`, where told."""
    return around.patience.ask(lambda: around.commits().newest(step=step, before=before))


def forget_copies(arena: Arena) -> None:
    """Of a daemon that has died. Workers that read them still have them mapped."""
    for path in arena.folder.glob("restore-*"):
        path.unlink(missing_ok=True)


# -- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerSource:
    """Another node's daemon, as a source. Its files are slots: (rank, generation)."""

    name: str
    credentials: PeerCredentials
    lanes: int = PEER_AT_ONCE
    most: int = transfers.RANGE

    def open(self) -> Reader:
        return _PeerReader(Peer(self.name, self.credentials))


class _PeerReader:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def read(self, file: object, offset: int, target: memoryview) -> None:
        assert isinstance(file, tuple)
        rank, generation = file
        self._peer.read(Read(rank, generation, offset, len(target)), target)

    def abort(self) -> None:
        self._peer.abort()

    def close(self) -> None:
        self._peer.close()


def _open_memory(ident: int, resume: Resume, around: SourceContext) -> OpenSource:
    """Own slots for what is there, the holders that are left for the rest."""
    save = Inventory(resume.incarnation, resume.step, resume.layout)
    own = slots.members(around.arena.sealed(), save.incarnation, save.step, save.layout)
    paths = [str(slot.path) for slot, _ in own]
    if own and _are_whole([header for _, header in own]):
        return _opened(ident, resume.step, own[0][1].world_size, paths, (), (), around)

    have = {item.key: item for slot, header in own for item in slot.items(header)}
    shelves, complaints = _shelves(resume, save, around)
    counts = [(header.shared, header.world_size) for _, header in own]
    counts += [(shelf.shared, shelf.world_size) for _, shelf in shelves]
    shared, world_size = counts[0] if counts else (0, 0)
    holders = list(dict.fromkeys(address for address, _ in shelves))
    items = copies([(holders.index(address), shelf) for address, shelf in shelves], have)
    found = sum(item.rank == SHARED for item in have.values())
    found += sum(item.rank == SHARED for item, _ in items)
    if not shared or found < shared:
        reason = "; ".join(complaints) or "its holders have overwritten it"
        raise RestoreFailed(f"step {resume.step} is no longer whole in memory: {reason}")
    sources = [PeerSource(address, around.credentials) for address in holders]
    return _opened(ident, resume.step, world_size, paths, items, sources, around)


def _are_whole(headers: Sequence[SlotHeader]) -> bool:
    """Whether they hold everything that the node's ranks need."""
    first = headers[0]
    return first.whole and {header.rank for header in headers} == set(first.ranks)


def _shelves(
    resume: Resume, save: Inventory, around: SourceContext
) -> tuple[list[tuple[str, Shelf]], list[str]]:
    """What the holders have, with their addresses, and why some have nothing."""

    def ask(holder: Holder) -> tuple[list[tuple[str, Shelf]], str]:
        try:
            with closing(Peer(holder.daemon, around.credentials)) as peer:
                return [(holder.daemon, shelf) for shelf in peer.inventory(save)], ""
        except RestoreFailed as error:
            around.warn(f"nothing comes from {holder.node}: {error}")
            return [], str(error)

    others = [h for h in resume.holders if h.node != around.node and h.daemon]
    with ThreadPoolExecutor(PEERS_AT_ONCE) as pool:
        answers = list(pool.map(ask, others))
    shelves = [entry for found, _ in answers for entry in found]
    return shelves, [complaint for _, complaint in answers if complaint]


def copies(
    shelves: Sequence[tuple[int, Shelf]], have: Iterable[Key] = ()
) -> list[tuple[Item, tuple[CopyLocation, ...]]]:
    """Pure: every item that is not there yet, and who holds it; neighbours in the first holder's
    slot stay neighbours."""
    known = set(have)
    places: dict[Key, tuple[Item, list[CopyLocation]]] = {}
    for source, shelf in shelves:
        for item in sorted(shelf.items, key=lambda item: item.offset):
            if item.key not in known:
                _, copies = places.setdefault(item.key, (item, []))
                copies.append(CopyLocation(source, (shelf.rank, shelf.generation), item.offset))
    return [(item, tuple(copies)) for item, copies in places.values()]
