"""Opens the exact source that a round restores from: own slots, other nodes' slots, or a commit.

Opening tells what the source holds. What is not in this node's own slots is then fetched range by
range as local ranks ask for it. It is fetched and verified once per node, into one file of the
arena that all ranks share.
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
from spotelastic_checkpoints.peers.messages import Inventory, Shelf
from spotelastic_checkpoints.peers.transfers import Peer
from spotelastic_checkpoints.restore import fetch_units
from spotelastic_checkpoints.restore.fetch_units import CopyLocation, LocatedItem
from spotelastic_checkpoints.restore.fetcher import Fetcher, RangeSource, Reader
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.outage_retry import OutageRetry
from spotelastic_checkpoints.types import Commit, Holder, Item, RestoreSet, Resume

STORE_RANGE = 8 << 20
"""Bytes per request to the object store."""
STORE_AT_ONCE = 8
"""Requests to the object store in flight at the same time."""
PEER_AT_ONCE = 2
"""Requests to each other node in flight at the same time."""
PEERS_AT_ONCE = 8
"""Number of nodes that are asked at the same time what they have."""

Key = tuple[str, tuple[int, ...]]
"""Identifies an item within a checkpoint."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a node needs to open a source."""

    arena: Arena
    commits: Callable[[], Commits]
    """Returns the checkpoints in the object store."""
    node: str
    """Id of this node."""
    credentials: PeerCredentials
    warn: Callable[[str], None]
    """Called, in any thread, with which holder a restore does without, and why."""
    retry: OutageRetry
    """Retries requests while the object store does not answer."""

    def reading(self) -> Commits:
        """Return the checkpoints in the object store, each request retried by itself."""
        return self.retry.ask(self.commits).patient(self.retry)


@dataclass(frozen=True, slots=True)
class OpenSource:
    """An open source, and the fetcher that local ranks read it with."""

    restore_set: RestoreSet
    fetcher: Fetcher


def open_source(ident: int, resume: Resume, context: SourceContext) -> OpenSource:
    """Open the source that `resume` names. Blocks.

    Raises `RestoreFailed`, or `StorageUnavailable` where the object store does not come back.
    """
    if resume.kind == "store":
        return _open_commit(ident, Commit(resume.epoch, resume.step), context)
    return _open_memory(ident, resume, context)


def _opened(
    ident: int,
    step: int,
    world_size: int,
    slots: Sequence[str],
    items: Iterable[tuple[Item, tuple[CopyLocation, ...]]],
    sources: Sequence[RangeSource],
    context: SourceContext,
) -> OpenSource:
    placed = fetch_units.placed(items)
    path = context.arena.folder / f"restore-{ident}"
    fetcher = Fetcher(path, placed, sources, readers=context.arena.workers)
    there = tuple(_described(found) for found in placed)
    described = RestoreSet(ident, step, world_size, tuple(slots), str(fetcher.path), there)
    return OpenSource(described, fetcher)


def _described(placed: LocatedItem) -> Item:
    """Return the item for workers, without checksums: the daemon verifies."""
    item = placed.item
    return Item(
        item.fqn, item.path, item.dtype, item.shape, item.offsets, item.sizes, item.rank,
        item.offset, item.length,
    )  # fmt: skip


# -- the object store -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitSource:
    """The folder of a commit, as a source and as each of its readers."""

    storage: Storage
    name: str
    lanes: int = STORE_AT_ONCE
    most: int = STORE_RANGE

    def open(self) -> Reader:
        """Return this object: requests need no connection of their own."""
        return self

    def read(self, file: str, offset: int, target: memoryview) -> None:
        """Fill `target` from an object. Raises `RestoreFailed` or `StorageUnavailable`."""
        key = f"{self.name}/{file}"
        # A second read tells an answer that was too short from an object that is.
        if all(self.storage.read(key, offset, target) != len(target) for _ in range(2)):
            raise RestoreFailed(
                f"{self.storage.url}/{key} is damaged: it is shorter than its manifest says"
            )

    def abort(self) -> None:
        """Do nothing: requests have deadlines."""

    def close(self) -> None:
        """Do nothing: all readers are this object."""


def _open_commit(ident: int, commit: Commit, context: SourceContext) -> OpenSource:
    commits = context.reading()
    manifests = commits.checkpoint(commit)
    items = [
        (item, (CopyLocation(0, shard.name, item.offset),))
        for content in manifests
        for shard in content.shards
        for item in sorted(shard.items, key=lambda item: item.offset)
    ]
    source = CommitSource(commits.storage, folder(commit))
    return _opened(ident, commit.step, manifests[0].world_size, (), items, [source], context)


def find_commit(step: int | None, before: Commit | None, context: SourceContext) -> Commit | None:
    """Return the newest commit in the object store, or None.

    `step` restricts the search to that step, `before` to commits older than that one.
    """
    return context.reading().newest(step=step, before=before)


def forget_copies(arena: Arena) -> None:
    """Delete what a daemon that died had fetched. Workers that read it still have it mapped."""
    for path in arena.folder.glob("restore-*"):
        path.unlink(missing_ok=True)


# -- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerSource:
    """The daemon of another node, as a source.

    Its files are slots, named by rank and generation.
    """

    name: str
    credentials: PeerCredentials
    lanes: int = PEER_AT_ONCE
    most: int = transfers.RANGE

    def open(self) -> Reader:
        """Connect to the daemon. Raises `RestoreFailed`."""
        return Peer(self.name, self.credentials)


def _open_memory(ident: int, resume: Resume, context: SourceContext) -> OpenSource:
    """Open own slots, and holders that still answer for what these do not have."""
    save = Inventory(resume.incarnation, resume.step, resume.layout)
    named = save.incarnation, save.step, save.layout
    own = slots.members(context.arena.sealed(), *named)
    paths = [str(slot.path) for slot, _ in own]
    if own and _are_whole([header for _, header in own]):
        return _opened(ident, resume.step, own[0][1].world_size, paths, (), (), context)

    # Here lies also what another node alone held.
    own = slots.members(context.arena.held(), *named)
    paths = [str(slot.path) for slot, _ in own]
    have = {item.key: item for slot, header in own for item in slot.items(header)}
    shelves, complaints = _shelves(resume, save, context)
    counts = [(header.shared, header.world_size) for _, header in own]
    counts += [(shelf.shared, shelf.world_size) for _, shelf in shelves]
    shared, world_size = counts[0] if counts else (0, 0)
    holders = list(dict.fromkeys(address for address, _ in shelves))
    items = copies([(holders.index(address), shelf) for address, shelf in shelves], have)
    found = sum(item.rank == SHARED for item in have.values())
    found += sum(item.rank == SHARED for item, _ in items)
    if not shared or found < shared:
        reason = "; ".join(complaints) or "the nodes that held it have overwritten it"
        raise RestoreFailed(
            f"step {resume.step} is no longer complete in the nodes' memory: {reason}"
        )
    sources = [PeerSource(address, context.credentials) for address in holders]
    return _opened(ident, resume.step, world_size, paths, items, sources, context)


def _are_whole(headers: Sequence[SlotHeader]) -> bool:
    """Return whether the slots hold everything that the node's ranks need."""
    first = headers[0]
    return first.whole and {header.rank for header in headers} == set(first.ranks)


def _shelves(
    resume: Resume, save: Inventory, context: SourceContext
) -> tuple[list[tuple[str, Shelf]], list[str]]:
    """Return what the holders have, with their addresses, and why others have nothing."""

    def ask(holder: Holder) -> tuple[list[tuple[str, Shelf]], str]:
        try:
            with closing(Peer(holder.daemon, context.credentials)) as peer:
                return [(holder.daemon, shelf) for shelf in peer.inventory(save)], ""
        except RestoreFailed as error:
            context.warn(f"no snapshot from node {holder.node}: {error}")
            return [], str(error)

    # A node with a replica is a holder twice, and has both.
    others = {h.daemon: h for h in resume.holders if h.node != context.node and h.daemon}.values()
    with ThreadPoolExecutor(PEERS_AT_ONCE) as pool:
        answers = list(pool.map(ask, others))
    shelves = [entry for found, _ in answers for entry in found]
    return shelves, [complaint for _, complaint in answers if complaint]


def copies(
    shelves: Sequence[tuple[int, Shelf]], have: Iterable[Key] = ()
) -> list[tuple[Item, tuple[CopyLocation, ...]]]:
    """Return each item that is still missing, with all places that hold it.

    Neighbours in the first holder's slot stay neighbours.
    """
    known = set(have)
    places: dict[Key, tuple[Item, list[CopyLocation]]] = {}
    for source, shelf in shelves:
        for item in sorted(shelf.items, key=lambda item: item.offset):
            if item.key not in known:
                _, copies = places.setdefault(item.key, (item, []))
                copies.append(CopyLocation(source, (shelf.rank, shelf.generation), item.offset))
    return [(item, tuple(copies)) for item, copies in places.values()]
