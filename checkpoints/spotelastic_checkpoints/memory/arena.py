"""Manages slots, the files in shared memory that hold saves and outlive worker, agent and daemon.

    <arena>/page-<local rank>             a worker's page (see worker_page.py)
    <arena>/slot-<local rank>-<number>    a save of one rank
    <arena>/replica-<set>-<number>        what one rank of another node holds alone
    <arena>/port                          where the daemon listens for other ones
    <arena>/round.json                    the last round that the daemon was told of

The files of a set are the replica of one save. They are written and sealed as slots are.

A slot is a header of one memory page, the bytes of the items (owned ones first), the index of the
items, and the lengths of the pickled values. A slot that was being written when its worker died
must never be taken for a save. So its state becomes "writing" before the first byte changes. It
becomes "sealed" after everything else is in place, the header's own checksum included.
"""

import errno
import mmap
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import msgspec
import xxhash

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.decoders import from_msgpack
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError
from spotelastic_checkpoints.memory.free_memory import FreeMemory, mib, room
from spotelastic_checkpoints.memory.prefault import populate
from spotelastic_checkpoints.memory.worker_page import WorkerPage
from spotelastic_checkpoints.protocol_version import PROTOCOL
from spotelastic_checkpoints.types import Item

PRIVATE = 0o700
"""Mode of the folder. It holds the state of the training, and the machine may have other users."""
HEADER = 4096
"""Bytes before a slot's data."""
MOST_SLOTS = 3
"""Largest number of slots of each rank."""
NEEDED = 0.9
"""Share of the free memory that slots may take which a rank cannot do without."""
SPARE = 0.5
"""Share of the free memory that slots may take, if one of them is a spare one."""
_MAGIC = int.from_bytes(b"SOPSET%02d" % PROTOCOL.major, "little")
"""First word of a slot. Slots of another major version count as empty."""
_WORDS = struct.Struct("<QQQQQ")
"""Magic, state, generation, and length and checksum of the description that follows."""
_STATE_AT, _GENERATION_AT = 8, 16
_LENGTHS = struct.Struct("<I")

_index_decoder = msgspec.msgpack.Decoder(tuple[Item, ...])


class SlotState(IntEnum):
    """What a slot holds: nothing, a save that is being written, or a complete one."""

    EMPTY = 0
    WRITING = 1
    SEALED = 2


class SlotHeader(msgspec.Struct, frozen=True):
    """Describes the save in a sealed slot."""

    owner: str
    """Name of the run."""
    incarnation: str
    """Incarnation of the round that sealed the slot."""
    step: int
    layout: str
    """Hash of the layout."""
    rank: int
    world_size: int
    ranks: tuple[int, ...]
    """All ranks of the node. Their slots together hold the node's part."""
    whole: bool
    """Whether the node's slots hold everything that is not per-rank."""
    chunks: int
    """Number of distinct items in the whole state."""
    shared: int
    """Number of distinct items that are not per-rank."""
    owned: int
    """Number of items that this rank uploads, which come first."""
    owned_bytes: int
    """Bytes at the beginning of the data that hold the items to upload."""
    data_bytes: int
    """Bytes of all items."""
    index_bytes: int
    """Bytes of the index behind the items."""
    values: int
    """Number of pickled values, whose lengths stand behind the index."""
    due: bool
    """Whether the save is to be uploaded."""
    alone: int = 0
    """Number of items that no other node holds, which come first of all."""
    alone_bytes: int = 0
    """Bytes at the beginning of the data that hold them."""
    covers: tuple[int, ...] = ()
    """Ranks of other nodes that hold the same as this node, but for what is per-rank."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot at one moment. It has a header when it is sealed."""

    path: Path
    state: SlotState
    header: SlotHeader | None


def slot_bytes(data: int, index: bytes, values: int) -> int:
    """Return the size of a slot's file, in whole memory pages.

    `data` are the bytes of its items, `values` is the number of pickled ones.
    """
    size = HEADER + data + len(index) + values * _LENGTHS.size
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def encode_index(items: Sequence[Item]) -> bytes:
    """Encode the index of a slot."""
    return msgspec.msgpack.encode(items)


class Slot:
    """One slot's file, mapped into memory: the worker writes it, the daemon reads it.

    A file that has grown has to be mapped again. Raises `FileNotFoundError` where the file is
    missing or empty, and `ArenaFull` where it cannot be mapped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            stat = os.fstat(descriptor)
            if stat.st_size < HEADER:
                raise FileNotFoundError(errno.ENOENT, "the slot is still empty", str(path))
            self.memory = _mapped(descriptor, stat.st_size, path)
        finally:
            os.close(descriptor)
        self.size = stat.st_size
        self._inode = stat.st_ino

    def is_of(self, file: os.stat_result) -> bool:
        """Return whether this maps the whole file."""
        return (file.st_ino, file.st_size) == (self._inode, self.size)

    @property
    def data(self) -> memoryview:
        """The slot's memory behind the header."""
        return self.memory[HEADER:]

    @property
    def generation(self) -> int:
        """A random number, new each time the slot is about to be written.

        No two saves on a node share one.
        """
        generation: int = _WORDS.unpack_from(self.memory)[2]
        return generation

    @property
    def state(self) -> SlotState:
        """The slot's state; empty where the file is not a slot."""
        magic, state, *_ = _WORDS.unpack_from(self.memory)
        return SlotState(state) if magic == _MAGIC else SlotState.EMPTY

    def header(self) -> SlotHeader | None:
        """Return the header; None unless the slot is sealed."""
        if self.state is not SlotState.SEALED:
            return None
        *_, length, checksum = _WORDS.unpack_from(self.memory)
        description = bytes(self.memory[_WORDS.size : _WORDS.size + length])
        if xxhash.xxh3_64_intdigest(description) != checksum:
            return None
        return from_msgpack(description, SlotHeader)

    def items(self, header: SlotHeader) -> tuple[Item, ...]:
        """Return the items with their true lengths. Offsets count from the slot's data.

        Raises `CheckpointsError` when the slot holds another save by now.
        """
        at = HEADER + header.data_bytes
        try:
            items = _index_decoder.decode(self.memory[at : at + header.index_bytes])
        except msgspec.MsgspecError as error:
            raise CheckpointsError(f"{self.path} has no index of step {header.step}") from error
        if sum(not item.is_tensor for item in items) != header.values:
            raise CheckpointsError(f"{self.path} has another index than that of step {header.step}")
        at += header.index_bytes
        lengths = iter(_LENGTHS.iter_unpack(self.memory[at : at + header.values * _LENGTHS.size]))
        return tuple(
            item if item.is_tensor else msgspec.structs.replace(item, length=next(lengths)[0])
            for item in items
        )

    # -- the worker -------------------------------------------------------------------------------

    def open(self) -> None:
        """Mark the slot as being written. Its old content is lost from here on."""
        self._set_state(SlotState.WRITING)
        generation = int.from_bytes(os.urandom(8), "little")
        _WORDS.pack_into(self.memory, 0, _MAGIC, SlotState.WRITING, generation, 0, 0)

    def write_index(self, data_bytes: int, index: bytes) -> None:
        """Write the index behind the items."""
        at = HEADER + data_bytes
        self.memory[at : at + len(index)] = index

    def seal(self, header: SlotHeader, lengths: Sequence[int]) -> None:
        """Write the header and the lengths of the values, and declare the slot complete."""
        at = HEADER + header.data_bytes + header.index_bytes
        for number, length in enumerate(lengths):
            _LENGTHS.pack_into(self.memory, at + number * _LENGTHS.size, length)
        description = msgspec.msgpack.encode(header)
        if _WORDS.size + len(description) > HEADER:
            raise ArenaFull(f"the header of {self.path} does not fit its page")
        self.memory[_WORDS.size : _WORDS.size + len(description)] = description
        _WORDS.pack_into(
            self.memory,
            0,
            _MAGIC,
            SlotState.WRITING,
            self.generation,
            len(description),
            xxhash.xxh3_64_intdigest(description),
        )
        self._set_state(SlotState.SEALED)

    # -- the daemon -------------------------------------------------------------------------------

    def drop(self) -> None:
        """Mark the slot as empty: its writer is dead, or its content must not be used."""
        self._set_state(SlotState.EMPTY)

    def _set_state(self, state: SlotState) -> None:
        self.memory[_STATE_AT:_GENERATION_AT] = int(state).to_bytes(8, "little")


def _mapped(descriptor: int, size: int, path: Path) -> memoryview:
    try:
        return memoryview(mmap.mmap(descriptor, size))
    except OSError as error:
        raise ArenaFull(f"no memory left to map {path}: {error.strerror}") from error


class Arena:
    """The folder of shared memory of a node, with the slots and pages of all local ranks."""

    def __init__(self, folder: Path, workers: int) -> None:
        folder.mkdir(PRIVATE, parents=True, exist_ok=True)
        self.folder = folder
        self.workers = workers
        self.pages = [WorkerPage(self.page_path(local)) for local in range(workers)]
        self._lock = threading.Lock()
        self._slots: dict[Path, Slot] = {}
        self._growing: set[Path] = set()
        """Slots being allocated. They may shrink again, and to read a map beyond a file's end is a
        SIGBUS.
        """

    def page_path(self, local_rank: int) -> Path:
        """Return the file of a worker's page."""
        return self.folder / f"page-{local_rank}"

    def slot_path(self, local_rank: int, number: int) -> Path:
        """Return the file of a slot."""
        return self.folder / f"slot-{local_rank}-{number}"

    def replica_path(self, number: int, rank: int) -> Path:
        """Return the file of a set that has what the other node's `rank`-th worker holds alone."""
        return self.folder / f"replica-{number}-{rank}"

    def slots(self, local_rank: int | None = None) -> list[Slot]:
        """Return all slots that exist, of one local rank or of all."""
        return self._found(f"slot-{'*' if local_rank is None else local_rank}-*")

    def replicas(self, number: int | None = None) -> list[Slot]:
        """Return all files of replicas that exist, of one set or of all."""
        return self._found(f"replica-{'*' if number is None else number}-*")

    def _found(self, pattern: str) -> list[Slot]:
        found = (self._slot(path) for path in sorted(self.folder.glob(pattern)))
        return [slot for slot in found if slot is not None]

    def held(self) -> list[tuple[Slot, SlotHeader]]:
        """Return the sealed slots, and behind them the sealed files of replicas."""
        return [*self.sealed(), *self.sealed_replicas()]

    def sealed_replicas(self, number: int | None = None) -> list[tuple[Slot, SlotHeader]]:
        """Return the sealed files of replicas with their headers, of one set or of all.

        Not every set need be whole.
        """
        return self._with_headers(self.replicas(number))

    def sealed(self) -> list[tuple[Slot, SlotHeader]]:
        """Return all sealed slots with their headers."""
        return self._with_headers(self.slots())

    def _with_headers(self, slots: Sequence[Slot]) -> list[tuple[Slot, SlotHeader]]:
        found = ((slot, slot.header()) for slot in slots)
        return [(slot, header) for slot, header in found if header is not None]

    def drop_torn(self) -> None:
        """Mark slots that were being written as empty; their writers are dead."""
        for slot in self.slots():
            if slot.state is SlotState.WRITING:
                slot.drop()

    def discard(self, path: Path) -> None:
        """Delete a slot and free its memory.

        Other threads may look at it meanwhile, but not use it.
        """
        self._slots.pop(path, None)
        path.unlink(missing_ok=True)

    def furnish(self, path: Path, size: int) -> Slot:
        """Make the slot have at least `size` bytes, all of them in memory. Takes a second per GiB.

        Raises `ArenaFull`, and leaves the slot as it was, where memory is missing.
        """
        self.allocate(path, size)
        slot = self._slot(path)
        if slot is None:
            raise ArenaFull(f"{path} was deleted while it was being made")
        crash_points.reached("furnish-allocated")
        try:
            populate(slot.memory)
        except OSError as error:
            raise ArenaFull(f"{path}: {error.strerror}; {self.room()}") from error
        crash_points.reached("furnish-populated")
        return slot

    def allocate(self, path: Path, size: int) -> None:
        """Make the file have at least `size` bytes, all backed by memory, or leave it as it was.

        Raises `ArenaFull` where memory is missing.
        """
        with self._lock:
            self._growing.add(path)
        try:
            self._grow(path, size)
        finally:
            self._growing.discard(path)

    def _grow(self, path: Path, size: int) -> None:
        with path.open("ab") as file:
            have = os.fstat(file.fileno()).st_size
            if have >= size:
                return
            wanted, left = f"{mib(size - have)} more for {path}", self.room()
            if size - have > left.free:
                raise ArenaFull(f"{wanted}; {left}: {left.more}")
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                os.ftruncate(file.fileno(), have)
                raise ArenaFull(f"{wanted}: {error.strerror}; {left}") from error

    def view(self, path: Path) -> SlotView:
        """Return the slot's state at this moment."""
        slot = self._slot(path)
        if slot is None:
            return SlotView(path, SlotState.EMPTY, None)
        return SlotView(path, slot.state, slot.header())

    def slots_that_fit(self, size: int, most: int) -> int:
        """Return how many slots each rank can have while training keeps enough memory.

        `size` is that of one slot. Three let a save proceed while another is uploaded. One is
        returned only where `most` is 1: a crash in the middle of a save then loses both. Raises
        `ArenaFull`, with the numbers, where even the smallest number does not fit.
        """
        left = self.room()
        least = min(2, most)
        for count in range(most, least - 1, -1):
            share = SPARE if count > least else NEEDED
            if self._lacking(count, size) <= share * left.free:
                return count
        raise ArenaFull(self._shortage(least, size, left))

    def room(self) -> FreeMemory:
        """Return how much memory is free for further slots."""
        return room(self.folder)

    def _lacking(self, count: int, size: int) -> int:
        """Return how many bytes are missing for so many slots of each rank.

        Each slot grows by itself. Memory in slots beyond that number does not help.
        """
        sizes = {slot.path: slot.size for slot in self.slots()}
        paths = [self.slot_path(rank, n) for rank in range(self.workers) for n in range(count)]
        return sum(max(size - sizes.get(path, 0), 0) for path in paths)

    def _shortage(self, count: int, size: int, left: FreeMemory) -> str:
        needed = count * size * self.workers
        slots = "two slots" if count == 2 else "one slot"
        ways = [left.more, "use fewer workers per node"]
        if count == 2:
            ways.append(
                "or set SPOTELASTIC_SLOTS=1 and commit more often (a crash during a save then "
                "goes back to the last commit)"
            )
        return (
            f"{slots} of {mib(size)} for each of {self.workers} workers need "
            f"{mib(needed)} in {self.folder}, of which {mib(needed - self._lacking(count, size))} "
            f"are there; {left}: {', '.join(ways)}"
        )

    def _slot(self, path: Path) -> Slot | None:
        """Return the slot, mapped; None where it does not exist.

        Slots are made and deleted while other threads look at them.
        """
        with self._lock:
            known = self._slots.get(path)
            if path in self._growing:
                return known
            try:
                if known is None or not known.is_of(path.stat()):
                    known = self._slots[path] = Slot(path)
            except FileNotFoundError:
                return None
            return known
