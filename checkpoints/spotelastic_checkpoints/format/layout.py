"""Pure: where every part of the state lies, in memory and in the object store.

Each rank declares what it has; from all declarations together every rank computes the same plan:

- a chunk (name, offsets) is held once per node, by one of the local ranks that have it, so that
  the slots of one node together hold the whole replicated state;
- one of those holders, job-wide, owns the chunk: it alone uploads it.

Both are the lowest ranks for what ranks may have otherwise, such as a module's buffers.

Owned items come first in a slot and are contiguous: each of the rank's files (shards.py) is a range
of shared memory. Tensors start at multiples of 64 bytes, after their prefix.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.types import Item

ALIGNMENT = 64
SHARED = -1


class Declared(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a tensor or a pickled value that a rank has in its state.

    `dtype` is empty for a value, whose `room` is the bytes to keep free for it. `rank` is the
    rank that a per-rank value belongs to, or SHARED. Of what is `lowest` the lowest rank's copy
    counts, where ranks differ.
    """

    fqn: str
    path: tuple[str | int, ...]
    dtype: str = ""
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    rank: int = SHARED
    room: int = 0
    lowest: bool = False

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        return self.fqn, self.offsets

    @property
    def nbytes(self) -> int:
        """In a slot, without what aligns it."""
        if not self.dtype:
            return self.room
        prefix = encoding.tensor_prefix(self.dtype, self.sizes)
        return len(prefix) + encoding.nbytes(self.dtype, self.sizes)


class Declaration(msgspec.Struct, frozen=True):
    """Everything that one rank has. `node` is any name that the node's ranks share."""

    rank: int
    node: str
    items: tuple[Declared, ...]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """What one rank's slots hold. `items[:owned]` are uploaded: the first `owned_bytes` bytes.

    The `length` of a value is 0 here: it is known only when the slot is sealed. `rooms` are the
    bytes kept free for each of the values, in the order of the items.
    """

    rank: int
    items: tuple[Item, ...]
    rooms: tuple[int, ...]
    owned: int
    owned_bytes: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class JobLayout:
    """The layout of the whole job, equal on all ranks."""

    hash: str
    world_size: int
    chunks: int
    """Distinct chunks and values in the whole state, and how many of them are not per-rank."""
    shared: int
    slots: dict[int, SlotLayout]
    """By rank."""
    nodes: dict[str, tuple[int, ...]]
    """The ranks of each node."""
    whole: frozenset[str]
    """Nodes whose slots hold everything that is shared."""


def plan(declarations: Sequence[Declaration]) -> JobLayout:
    """Deterministic: the same declarations give the same plan, in any order."""
    declarations = sorted(declarations, key=lambda declaration: declaration.rank)
    nodes: dict[str, list[int]] = defaultdict(list)
    chunks: dict[tuple[str, tuple[int, ...]], Declared] = {}
    having: dict[tuple[str, tuple[int, ...]], dict[str, list[int]]] = {}
    for declaration in declarations:
        nodes[declaration.node].append(declaration.rank)
        for item in declaration.items:
            known = chunks.setdefault(item.key, item)
            if item.room > known.room:  # whichever rank holds it, its own value has to fit
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

    slots = {rank: _arrange(rank, owned[rank], held[rank]) for rank in held}
    shared = {key for key, chunk in chunks.items() if chunk.rank == SHARED}
    whole = frozenset(node for node in nodes if all(node in having[key] for key in shared))
    return JobLayout(
        hash=_hash(declarations, slots),
        world_size=len(declarations),
        chunks=len(chunks),
        shared=len(shared),
        slots=slots,
        nodes={node: tuple(ranks) for node, ranks in nodes.items()},
        whole=whole,
    )


def _arrange(rank: int, owned: Sequence[Declared], held: Sequence[Declared]) -> SlotLayout:
    items: list[Item] = []
    end = owned_bytes = 0
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
        if number == len(owned) - 1:
            owned_bytes = end
            end = aligned(end)
    rooms = tuple(declared.room for declared in [*owned, *held] if not declared.dtype)
    return SlotLayout(rank, tuple(items), rooms, len(owned), owned_bytes, aligned(end))


def _place(declared: Declared, start: int) -> tuple[int, int, int]:
    """Offset, length (0 for a value) and where the next item may start."""
    if not declared.dtype:
        offset = aligned(start)
        return offset, 0, offset + declared.room
    prefix = len(encoding.tensor_prefix(declared.dtype, declared.sizes))
    offset = aligned(start + prefix) - prefix
    return offset, declared.nbytes, offset + declared.nbytes


def aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _hash(declarations: Sequence[Declaration], slots: dict[int, SlotLayout]) -> str:
    digest = xxhash.xxh3_128()
    digest.update(msgspec.msgpack.encode(declarations))
    for rank in sorted(slots):
        digest.update(msgspec.msgpack.encode((rank, slots[rank].owned, slots[rank].items)))
    return digest.hexdigest()
