"""Plans which rank's slot in memory holds each part of the state, and which rank uploads it.

Each rank declares what it has. From all declarations together every rank computes the same plan:

- a chunk (name, offsets) is held once per node, by one of the local ranks that have it, so that the
  slots of one node together hold the whole replicated state;
- one of these holders in the whole job owns the chunk: it alone uploads it.

What no other node holds is copied into another node's memory. So in the slots of a node with such
chunks these come first of all: they are the beginning of the slot. A node all of whose chunks are
on other nodes, too, has none: values of its ranks alone are not worth a replica.

For a chunk that may differ between ranks, such as a module's buffers, both are the lowest rank.

Owned items come first in a slot and are contiguous, so that each of the rank's files (shards.py) is
a range of shared memory. The elements of a tensor start at a multiple of 64 bytes, after their
prefix.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.types import Item

ALIGNMENT = 64
"""Bytes of a multiple of which the elements of each tensor begin."""
MOST_COVERED = 256
"""Ranks that a node says it can stand in for. They have to fit a slot's header."""
SHARED = -1
"""Stands for the rank of what does not belong to a single one."""


Key = tuple[str, tuple[int, ...]]
"""Identifies a chunk within the state."""


class Declared(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a tensor, or a pickled value, that a rank has in its state."""

    fqn: str
    path: tuple[str | int, ...]
    dtype: str = ""
    """Name of the torch dtype; empty for a pickled value."""
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    rank: int = SHARED
    """The rank that a per-rank value belongs to, or `SHARED`."""
    room: int = 0
    """Bytes to keep free for a pickled value."""
    lowest: bool = False
    """Whether the lowest rank's copy counts, where ranks differ."""

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Identifies the chunk within the state."""
        return self.fqn, self.offsets

    @property
    def nbytes(self) -> int:
        """Bytes in a slot, without alignment."""
        if not self.dtype:
            return self.room
        prefix = encoding.tensor_prefix(self.dtype, self.sizes)
        return len(prefix) + encoding.nbytes(self.dtype, self.sizes)


class Declaration(msgspec.Struct, frozen=True):
    """Everything that one rank has in its state."""

    rank: int
    node: str
    """A name that exactly the ranks of one node share."""
    items: tuple[Declared, ...]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """What one rank's slots hold, and where."""

    rank: int
    items: tuple[Item, ...]
    """The items in the order of their offsets. The `length` of a value is 0: it is only known when
    the slot is sealed.
    """
    rooms: tuple[int, ...]
    """Bytes kept free for each of the values, in the order of the items."""
    owned: int
    """Number of items that this rank uploads, which come first."""
    owned_bytes: int
    """Bytes from the beginning of the slot that hold the items to upload."""
    nbytes: int
    """Bytes of all items, with alignment."""
    alone: int = 0
    """Number of items that no other node holds, which come first of all."""
    alone_bytes: int = 0
    """Bytes from the beginning of the slot that hold these."""


@dataclass(frozen=True, slots=True)
class JobLayout:
    """The layout of the whole job, equal on all ranks."""

    hash: str
    """Tells whether two saves fit together."""
    world_size: int
    chunks: int
    """Number of distinct chunks and values in the whole state."""
    shared: int
    """Number of distinct chunks and values that are not per-rank."""
    slots: dict[int, SlotLayout]
    """The layout of each rank's slots."""
    nodes: dict[str, tuple[int, ...]]
    """The ranks of each node."""
    whole: frozenset[str]
    """Nodes whose slots hold everything that is not per-rank."""
    covers: dict[str, tuple[int, ...]]
    """For nodes that are not whole, ranks of other nodes that hold the same, but for what is
    per-rank.
    """


def plan(declarations: Sequence[Declaration]) -> JobLayout:
    """Compute the layout. The same declarations give the same layout, in any order."""
    declarations = sorted(declarations, key=lambda declaration: declaration.rank)
    nodes: dict[str, list[int]] = defaultdict(list)
    chunks: dict[Key, Declared] = {}
    having: dict[Key, dict[str, list[int]]] = {}
    for declaration in declarations:
        nodes[declaration.node].append(declaration.rank)
        for item in declaration.items:
            known = chunks.setdefault(item.key, item)
            if item.room > known.room:  # Any holder's value has to fit, so the largest room counts.
                chunks[item.key] = item
            ranks = having.setdefault(item.key, defaultdict(list))
            ranks[declaration.node].append(declaration.rank)

    held: dict[int, list[Declared]] = {d.rank: [] for d in declarations}
    owned: dict[int, list[Declared]] = {d.rank: [] for d in declarations}
    load = dict.fromkeys(held, 0)
    upload = dict.fromkeys(held, 0)
    for key in sorted(chunks, key=lambda key: (-chunks[key].nbytes, key)):
        chunk = chunks[key]
        if chunk.lowest:
            holders = [min(ranks) for ranks in having[key].values()]
            owner = min(holders)
        else:
            holders = [min(ranks, key=lambda r: (load[r], r)) for ranks in having[key].values()]
            owner = min(holders, key=lambda r: (upload[r], r))
        upload[owner] += chunk.nbytes
        owned[owner].append(chunk)
        for holder in holders:
            load[holder] += chunk.nbytes
            if holder != owner:
                held[holder].append(chunk)

    shared = {key for key, chunk in chunks.items() if chunk.rank == SHARED}
    alone = {key for key, there in having.items() if len(there) == 1}
    # A single node has nobody who could keep a replica.
    lonely = {next(iter(having[key])) for key in alone & shared} if len(nodes) > 1 else set()
    of_lonely = {rank for node in lonely for rank in nodes[node]}
    slots = {
        rank: _arrange(rank, owned[rank], held[rank], alone if rank in of_lonely else set())
        for rank in held
    }
    whole = frozenset(node for node in nodes if all(node in having[key] for key in shared))
    return JobLayout(
        hash=_hash(declarations, slots),
        world_size=len(declarations),
        chunks=len(chunks),
        shared=len(shared),
        slots=slots,
        nodes={node: tuple(ranks) for node, ranks in nodes.items()},
        whole=whole,
        covers=_covers(nodes, whole, having, shared),
    )


def _covers(
    nodes: Mapping[str, Sequence[int]],
    whole: Collection[str],
    having: Mapping[Key, Collection[str]],
    shared: Collection[Key],
) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each node's twins, those that follow it first."""
    held: dict[str, set[Key]] = {node: set() for node in nodes if node not in whole}
    for key in shared:
        for node in having[key]:
            if node in held:
                held[node].add(key)
    alike: dict[frozenset[Key], list[str]] = defaultdict(list)
    for node, keys in held.items():
        alike[frozenset(keys)].append(node)
    found: dict[str, tuple[int, ...]] = {}
    for twins in alike.values():
        for number, node in enumerate(twins):
            others = [*twins[number + 1 :], *twins[:number]]
            ranks = [rank for other in others for rank in nodes[other]]
            found[node] = tuple(ranks[:MOST_COVERED])
    return found


def _arrange(
    rank: int, owned: Sequence[Declared], held: Sequence[Declared], alone: Collection[Key]
) -> SlotLayout:
    items: list[Item] = []
    end = owned_bytes = alone_bytes = 0
    owned = sorted(owned, key=lambda declared: declared.key not in alone)
    first = sum(declared.key in alone for declared in owned)
    for number, declared in enumerate([*owned, *held]):
        offset, length, end = _place(declared, end)
        items.append(
            Item(
                declared.fqn,
                declared.path,
                declared.dtype,
                declared.shape,
                declared.offsets,
                declared.sizes,
                declared.rank,
                offset,
                length,
            )
        )
        if number == first - 1:
            alone_bytes = end
        if number == len(owned) - 1:
            owned_bytes = end
            end = aligned(end)
    rooms = tuple(declared.room for declared in [*owned, *held] if not declared.dtype)
    nbytes = aligned(end)
    return SlotLayout(
        rank, tuple(items), rooms, len(owned), owned_bytes, nbytes, first, alone_bytes
    )


def _place(declared: Declared, start: int) -> tuple[int, int, int]:
    """Return an item's offset, its length (0 for a value), and where the next item may start."""
    if not declared.dtype:
        offset = aligned(start)
        return offset, 0, offset + declared.room
    prefix = len(encoding.tensor_prefix(declared.dtype, declared.sizes))
    offset = aligned(start + prefix) - prefix
    return offset, declared.nbytes, offset + declared.nbytes


def aligned(position: int) -> int:
    """Round a position up to the next multiple of `ALIGNMENT`."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def _hash(declarations: Sequence[Declaration], slots: dict[int, SlotLayout]) -> str:
    digest = xxhash.xxh3_128()
    digest.update(msgspec.msgpack.encode(declarations))
    for rank in sorted(slots):
        digest.update(msgspec.msgpack.encode((rank, slots[rank].owned, slots[rank].items)))
    return digest.hexdigest()
