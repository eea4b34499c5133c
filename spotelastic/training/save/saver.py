"""Saves one rank's state: agrees on a layout with all ranks, and copies the state into slots.

Everything that stays the same from save to save (offsets, prefixes, the index, views of the slot)
is made once per layout and slot. A save is then one copy of tensors and a few small values.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from msgspec.structs import replace
from spotelastic_checkpoints.format import encoding, layout
from spotelastic_checkpoints.format.layout import Declaration, Declared
from spotelastic_checkpoints.memory import arena
from spotelastic_checkpoints.memory.arena import SlotHeader
from spotelastic_checkpoints.protocol.worker_client import OpenSlot
from spotelastic_checkpoints.types import Item

from spotelastic.errors import UsageError
from spotelastic.torch_names import copy_all
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.save import pinning
from spotelastic.training.save.overlap import SIZES, Copying, Overlap, OverlapSizes, samples_of
from spotelastic.training.state import rank_agreement, values
from spotelastic.training.state.chunks import Chunk, Key
from spotelastic.training.state.derived import refuse_names_of_two_paths
from spotelastic.training.state.state import StateView
from spotelastic.training.state.tensors import same_bits
from spotelastic.training.state.value_entries import OWN, ValueEntry


class LayoutChanged(Exception):
    """The state no longer fits its layout. The message names what has changed."""


def declare(view: StateView, encoders: values.Encoders | None = None) -> tuple[Declared, ...]:
    """Return what this rank has in its state.

    Raises `UsageError`, naming what could not be restored.
    """
    entries, encoders = [], encoders or values.Encoders()
    for entry in view.entries:
        size = len(encoders.encode(entry.shown, entry.get()))
        # There is room to spare: a counter that grows by a digit must not change the layout.
        room = layout.aligned(size + size // 2 + 128)
        lowest = entry.fqn in view.buffers
        entries.append(Declared(entry.fqn, entry.path, rank=entry.rank, room=room, lowest=lowest))
    chunks = (chunk.declared(lowest=chunk.fqn in view.buffers) for chunk in view.chunks)
    return (*chunks, *entries)


def _agreed(
    ranks: Ranks, view: StateView, encoders: values.Encoders
) -> tuple[tuple[Declared, ...], list[Declaration], list[str]]:
    """Exchange declarations with all ranks.

    Returns this rank's, all ranks', and buffers that differ between ranks although nothing
    synchronises them. What is refused on one rank is refused on all, so that none waits for
    another.
    """
    own: tuple[Declared, ...] = ()
    hashes: dict[rank_agreement.Name, rank_agreement.Digest] = {}
    problem: UsageError | None = None
    try:
        own = declare(view, encoders)
        if ranks.group is not None:
            hashes = rank_agreement.digests(view)
    except UsageError as error:
        problem = error
    digests = [hashes.get(item.key) for item in own]
    told = ranks.gather((Declaration(ranks.rank, ranks.node, own), digests, str(problem or "")))
    if problem is not None:
        raise problem
    for declaration, _, said in told:
        if said:
            raise UsageError(f"rank {declaration.rank}: {said}")
    declarations = [declaration for declaration, *_ in told]
    buffers = {item.fqn for each in declarations for item in each.items if item.lowest}
    different = rank_agreement.differing(
        [
            {item.key: digest for item, digest in zip(each.items, found, strict=True) if digest}
            for each, found, _ in told
        ]
    )
    rank_agreement.refuse({name: at for name, at in different.items() if name[0] not in buffers})
    untold = [fqn for fqn, _ in different if not view.buffers.get(fqn, True)]
    return own, declarations, untold


_WITHOUT = ("cpu", "meta")
"""Types of devices that need no synchronisation."""


@dataclass(frozen=True, slots=True)
class SlotSource:
    """What the items of a slot are copied from, in the order of the items."""

    tensors: list[torch.Tensor]
    entries: tuple[ValueEntry, ...]
    devices: tuple[torch.device, ...]
    """Devices that tensors are on; empty where all are in memory."""
    overlap: Overlap
    """The tensors that may be copied beside training."""
    others: tuple[int, ...]
    """Numbers of the tensors that may not be copied beside training."""


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """The tensors in a slot, in the order of the items. They are valid for this map of it only."""

    memory: memoryview
    tensors: list[torch.Tensor]
    samples: dict[int, torch.Tensor]
    """Views of the samples of those that are copied beside training, by number."""


class Saver:
    """Saves the state by one layout. All ranks make theirs together when the layout is new."""

    def __init__(
        self, ranks: Ranks, view: StateView, round_: str, sizes: OverlapSizes = SIZES
    ) -> None:
        """Agree on the layout.

        `round_` is the incarnation. Raises `UsageError` where ranks differ.
        """
        self._ranks = ranks
        self._round = round_
        self._sizes = sizes
        self._encoders = values.Encoders()
        self._declared, declarations, self.differing = _agreed(ranks, view, self._encoders)
        self._plan = layout.plan(declarations)
        self._layout = self._plan.slots[ranks.rank]
        self._index = arena.encode_index(self._layout.items)
        refuse_names_of_two_paths(
            (item.fqn, item.path) for each in declarations for item in each.items
        )
        self._views: dict[str, SlotTensors] = {}
        self._tensor_items = [item for item in self._layout.items if item.is_tensor]
        self._value_items = [item for item in self._layout.items if not item.is_tensor]
        self._prefixes = [
            encoding.tensor_prefix(item.dtype, item.sizes) for item in self._tensor_items
        ]
        everywhere = frozenset.intersection(
            *(frozenset(item.key for item in each.items) for each in declarations)
        )
        small = {item.key for item in self._declared if item.room < rank_agreement.LARGE}
        self._often = everywhere & small
        self._source = self._sources(view)
        self._compared = self._compared_often(view)
        gpu = next((device for device in self._source.devices if device.type == "cuda"), None)
        self._pins = pinning.pins(gpu) if gpu is not None else None
        self._looking, self._closed = threading.Lock(), False

    @property
    def nbytes(self) -> int:
        """Bytes of a slot."""
        return arena.slot_bytes(self._layout.nbytes, self._index, len(self._value_items))

    @property
    def layout_hash(self) -> str:
        """Hash of the layout of all ranks' slots."""
        return self._plan.hash

    def follow(self, view: StateView) -> None:
        """Use other tensors of the same layout from now on.

        Raises `LayoutChanged` where it is another.
        """
        new = {d.key: (d.dtype, d.shape, d.sizes) for d in declare(view, self._encoders)}
        old = {d.key: (d.dtype, d.shape, d.sizes) for d in self._declared}
        if new != old:
            changed = {key[0] for key in new.keys() | old.keys() if new.get(key) != old.get(key)}
            # Names of ours follow from the others.
            first = min(changed, key=lambda name: (name.startswith(f"{OWN}."), name))
            if first.startswith(f"{OWN}."):
                raise LayoutChanged("what the state consists of, or trains, is another")
            raise LayoutChanged(f"{first} is new, gone, or of another shape")
        self._source = self._sources(view)
        self._compared = self._compared_often(view)

    def hash_of_values(self) -> str:
        """Return a hash of the values that all ranks have, as they are now.

        Large values are not part of it: they are only compared when saves are planned.
        """
        return rank_agreement.hash_of_values(self._compared)

    def wait(self) -> None:
        """Wait until each device has done everything that was launched so far."""
        for device in self._source.devices:
            torch.get_device_module(device).current_stream(device).synchronize()

    @torch.no_grad()
    def begin(
        self,
        slot: OpenSlot,
        step: int,
        *,
        due: bool,
        overlaps: bool,
        sealed: Callable[[], None] = lambda: None,
        incarnation: str = "",
        take: int = 0,
    ) -> Copying | None:
        """Fill and seal the slot, and return what goes on beside training, if it `overlaps`.

        `sealed` is called when the slot is sealed; in that case in another thread. `incarnation` is
        the round's unless given. Each `take` of a step is told from the others by its layout.
        Raises `LayoutChanged`.
        """
        lengths = self._fill_values(slot)
        header = self._header(slot.owner, incarnation or self._round, step, due=due)
        if take:
            header = replace(header, layout=f"{header.layout}+{take}")
        source, known = self._source, self._tensors_in(slot.path, slot.memory)
        overlaps = overlaps and bool(source.overlap.at)
        now = source.others if overlaps else range(len(source.tensors))
        if now:
            targets = [known.tensors[number] for number in now]
            sources = [source.tensors[number] for number in now]
            copy_all(targets, sources, non_blocking=True)
        self.wait()

        def seal() -> None:
            slot.seal(header, lengths)
            sealed()

        if overlaps:
            return source.overlap.begin(known.tensors, known.samples, seal)
        seal()
        return None

    def _fill_values(self, slot: OpenSlot) -> list[int]:
        """Write the values into the slot and return their lengths."""
        encode = self._encoders.encode
        encoded = [encode(entry.shown, entry.get()) for entry in self._source.entries]
        for item, data, room in zip(self._value_items, encoded, self._layout.rooms, strict=True):
            if len(data) > room:
                raise LayoutChanged(f"{item.fqn} has grown too large for its place")
        if not slot.known:
            self._furnish(slot)
        for item, data in zip(self._value_items, encoded, strict=True):
            slot.data[item.offset : item.offset + len(data)] = data
        return [len(data) for data in encoded]

    @torch.no_grad()
    def differs(self, slot: OpenSlot, step: int) -> str:
        """Return the name of something that is not as it was saved into this slot; empty if all is.

        What spotelastic adds to a state does not count.
        """
        source = self._source
        tensors = {
            item.key: tensor
            for item, tensor in zip(self._tensor_items, source.tensors, strict=True)
        }
        entries = {entry.key: entry for entry in source.entries}
        saved = slot.saved_items(self._round, step)
        if {item.key for item in saved} != tensors.keys() | entries.keys():
            return "the state"
        for item in saved:
            if item.is_tensor:
                same = same_bits(tensors[item.key], tensor_at(slot.data, item))
            else:
                entry = entries[item.key]
                data = slot.data[item.offset : item.offset + item.length]
                same = not entry.is_of_script or self._is_same(entry, data)
            if not same:
                return item.fqn
        return ""

    def _is_same(self, entry: ValueEntry, saved: memoryview) -> bool:
        value = entry.get()
        if self._encoders.encode(entry.shown, value) == saved:
            return True
        digest = rank_agreement.digest_of_value(value)
        there = rank_agreement.digest_of_value(values.decode(entry.shown, saved))
        return digest is not None and digest == there

    def look_at(self, path: str, memory: memoryview) -> None:
        """Create the tensor views of a slot, and page-lock it. Reads and writes nothing.

        Called on a background thread, before the first save into the slot or while it is being
        made.
        """
        with self._looking:
            if self._closed:
                return
            self._tensors_in(path, memory)
            if self._pins is not None:
                self._pins.add(path, memory)

    def close(self) -> None:
        """Stop using slots.

        An interpreter that ends while a thread is inside of torch aborts, so this waits for
        `look_at`.
        """
        self._closed = True  # first, for a thread that waits for the lock
        with self._looking:
            if self._pins is not None:
                self._pins.close()

    def _furnish(self, slot: OpenSlot) -> None:
        slot.write_index(self._layout.nbytes, self._index)
        for item, prefix in zip(self._tensor_items, self._prefixes, strict=True):
            slot.data[item.offset : item.offset + len(prefix)] = prefix

    def _tensors_in(self, path: str, memory: memoryview) -> SlotTensors:
        """Return the tensors in a slot. Two threads may make the same ones, which does no harm."""
        known = self._views.get(path)
        if known is None or known.memory is not memory:
            data = memory[arena.HEADER :]
            tensors = [tensor_at(data, item) for item in self._tensor_items]
            known = self._views[path] = SlotTensors(memory, tensors, {})
        for number in self._source.overlap.at:
            if number not in known.samples:
                known.samples[number] = samples_of(known.tensors[number], self._sizes.block)
        return known

    def _sources(self, view: StateView) -> SlotSource:
        chunks: Mapping[Key, Chunk] = {chunk.key: chunk for chunk in view.chunks}
        entries: Mapping[Key, ValueEntry] = {entry.key: entry for entry in view.entries}
        tensors = [chunks[item.key].tensor for item in self._tensor_items]
        overlap = Overlap(tensors, view.optimized, self._sizes)
        deferred = set(overlap.at)
        return SlotSource(
            tensors,
            tuple(entries[item.key] for item in self._value_items),
            devices_of(tensors),
            overlap,
            tuple(number for number in range(len(tensors)) if number not in deferred),
        )

    def _compared_often(self, view: StateView) -> list[ValueEntry]:
        return [each for each in rank_agreement.compared(view.entries) if each.key in self._often]

    def _header(self, owner: str, incarnation: str, step: int, *, due: bool) -> SlotHeader:
        plan, own = self._plan, self._layout
        return SlotHeader(
            owner=owner,
            incarnation=incarnation,
            step=step,
            layout=plan.hash,
            rank=self._ranks.rank,
            world_size=plan.world_size,
            ranks=plan.nodes[self._ranks.node],
            whole=self._ranks.node in plan.whole,
            chunks=plan.chunks,
            shared=plan.shared,
            owned=own.owned,
            owned_bytes=own.owned_bytes,
            data_bytes=own.nbytes,
            index_bytes=len(self._index),
            values=len(self._value_items),
            due=due,
            alone=own.alone,
            alone_bytes=own.alone_bytes,
            covers=plan.covers.get(self._ranks.node, ()),
        )


def devices_of(tensors: Iterable[torch.Tensor]) -> tuple[torch.device, ...]:
    """Return the devices to wait for; a process may have tensors on several."""
    return tuple(dict.fromkeys(t.device for t in tensors if t.device.type not in _WITHOUT))


def tensor_at(data: memoryview, item: Item) -> torch.Tensor:
    """Return the item's tensor, in place."""
    return raw_tensor(data, start_of(item), item.dtype, item.sizes)


def start_of(item: Item) -> int:
    """Return where the elements of a tensor begin."""
    return item.offset + item.length - encoding.nbytes(item.dtype, item.sizes)


def raw_tensor(
    data: memoryview, start: int, dtype_name: str, sizes: tuple[int, ...]
) -> torch.Tensor:
    """Return the tensor whose elements begin at `start`, in place."""
    dtype = getattr(torch, dtype_name)
    count = encoding.nbytes(dtype_name, sizes) // encoding.ITEM_SIZES[dtype_name]
    if not count:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=start).view(sizes)
