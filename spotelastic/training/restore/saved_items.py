"""Reads the tensors and values of an opened checkpoint by name, from the files that hold them."""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.restore.contents import Piece
from spotelastic_checkpoints.types import Item, Range
from torch.distributed.tensor import DTensor

from spotelastic.errors import SpotelasticError
from spotelastic.training.save.saver import start_of, tensor_at
from spotelastic.training.state import values
from spotelastic.training.state.chunks import Chunk, chunks_of, dtype_name
from spotelastic.training.state.compatibility import Kind
from spotelastic.training.state.composite_tensors import inner_name, is_description, made
from spotelastic.training.state.derived import Path, filled, set_element
from spotelastic.training.state.tensors import pour
from spotelastic.training.state.value_entries import EXACT, OWN

_MAP_NORESERVE = 0x4000
"""Linux's flag for mapping a file larger than memory, of which only a part is there."""

Box = tuple[Sequence[int], Sequence[int]]
"""Offsets and sizes of a part of a tensor."""


class Readable(Protocol):
    """What an opened checkpoint has to tell."""

    step: int

    def pieces(self) -> Iterator[Piece]:
        """Yield all items, each with the file that holds it."""


class SavedItems:
    """What was saved, by name. It holds maps of shared memory until it is dropped."""

    def __init__(self, contents: Readable) -> None:
        """Read the index of everything that was saved."""
        self.step = contents.step
        self._maps: dict[str, memoryview] = {}
        self.contained: dict[str, torch.Tensor] = {}
        """Tensors in containers, by name. They stay, and are filled."""
        self.devices: dict[str, torch.device] = {}
        """Devices of tensors that are saved as values, by name."""
        self.sharded: dict[str, DTensor] = {}
        """Sharded tensors in the present state of what is being loaded, by name."""
        self.index(contents.pieces())

    def index(self, pieces: Iterable[Piece]) -> None:
        """Take these pieces for everything that was saved. They may have got other names."""
        self.pieces: dict[str, list[Piece]] = {}
        """The pieces of each tensor, or the one of a value, by name."""
        for piece in pieces:
            self.pieces.setdefault(piece.item.fqn, []).append(piece)
        # Where the sharding is as it was, there are no parts to look for.
        self._parts = {
            (fqn, piece.item.offsets): piece
            for fqn, pieces in self.pieces.items()
            if len(pieces) > 1
            for piece in pieces
        }
        self.paths = [pieces[0].item.path for pieces in self.pieces.values()]
        """Paths of all names."""
        self.own_paths = [path for path in self.paths if path[0] == OWN]
        """Paths of values that spotelastic added."""
        self.exact = (OWN, EXACT) in self.own_paths
        """Whether structures tell all that tensors are."""
        self.inner = {fqn for fqn in self.pieces if fqn.endswith("]") and self._is_inner(fqn)}
        """Names of tensors that others consist of."""

    def _is_inner(self, fqn: str) -> bool:
        """Return whether it is an inner tensor of another one, which was saved as a value."""
        first = self.pieces[fqn][0]
        above = self.pieces.get(".".join(map(str, first.item.path[:-1])), [first])
        return first.item.is_tensor and not above[0].item.is_tensor

    def as_saved(self, chunk: Chunk) -> Piece | None:
        """Return the piece that is exactly this chunk of the tensor, or None."""
        pieces = self.pieces.get(chunk.fqn, ())
        piece = pieces[0] if len(pieces) == 1 else self._parts.get(chunk.key)
        if piece is None:
            return None
        item = piece.item
        same = item.offsets == chunk.offsets and item.sizes == chunk.sizes
        return piece if same and item.dtype == dtype_name(chunk.tensor) else None

    def kinds(self) -> dict[str, Kind]:
        """Return types and shapes of everything that was saved, without what spotelastic added."""
        return {
            fqn: Kind(pieces[0].item.dtype, pieces[0].item.shape)
            for fqn, pieces in self.pieces.items()
            if pieces[0].item.path[0] != OWN and fqn not in self.inner
        }

    def own_value(self, name: str) -> Any:
        """Return a value that spotelastic added; None where it was not saved or cannot be had."""
        pieces = self.pieces.get(f"{OWN}.{name}")
        return self.value(pieces[0]) if pieces else None

    def kinds_by_path(self) -> dict[Path, Kind]:
        """Return types and shapes by path, of entries as deep as an optimizer's."""
        return {
            pieces[0].item.path: Kind(pieces[0].item.dtype, pieces[0].item.shape)
            for fqn, pieces in self.pieces.items()
            if len(pieces[0].item.path) > 3 and fqn not in self.inner
        }

    def nested(self, name: str) -> Any:
        """Return the entry as its state_dict() was, or as the container was."""
        structure = self.own_value(f"structure.{name}")
        if structure is not None:
            return filled(structure, self.whole, exact=self.exact)
        nested: dict[str, Any] = {}
        for fqn, pieces in self.pieces.items():
            if pieces[0].item.path[0] == name and fqn not in self.inner:
                set_element(nested, pieces[0].item.path, self.whole(fqn))
        return nested.get(name, {})

    def whole(self, fqn: str) -> Any:
        """Return a value or a whole tensor; of one that is sharded here, this rank's part."""
        if fqn in self.contained:
            return self.contained[fqn]
        first = self.pieces[fqn][0]
        if fqn in self.sharded:
            sharded = torch.empty_like(self.sharded[fqn])
            for chunk in chunks_of(fqn, first.item.path, sharded):
                self.fill(fqn, chunk.tensor, chunk.offsets)
            return sharded
        if not first.item.is_tensor:
            return self.value(first)
        dtype, device = getattr(torch, first.item.dtype), self.devices.get(fqn)
        tensor = torch.empty(first.item.shape, dtype=dtype, device=device)
        self.fill(fqn, tensor, (0,) * tensor.dim())
        return tensor

    def fill(self, fqn: str, target: torch.Tensor, offsets: Sequence[int]) -> None:
        """Copy the part that starts at `offsets` from all chunks that hold some of it."""
        copied = 0
        for piece in self.pieces[fqn]:
            part = overlap(piece.item, offsets, tuple(target.shape))
            if part is None:
                continue
            source = tensor_at(self.map(piece.file), piece.item)
            for axis, (start, length) in enumerate(part):
                source = source.narrow(axis, start - piece.item.offsets[axis], length)
            into = target
            for axis, (start, length) in enumerate(part):
                into = into.narrow(axis, start - offsets[axis], length)
            pour([into], [source])
            copied += source.numel()
        if copied != target.numel():
            raise SpotelasticError(
                f"the checkpoint of step {self.step} is damaged: a part of {fqn} is missing"
            )

    def value(self, piece: Piece) -> Any:
        """Return a value. Raises `UsageError` where it is more than data."""
        item = piece.item
        data = self.map(piece.file)[item.offset : item.offset + item.length]
        value, device = values.decode(item.fqn, data), self.devices.get(item.fqn)
        if is_description(value):
            return made(value, lambda name: self.whole(f"{item.fqn}.{inner_name(name)}").to(device))
        if isinstance(value, torch.Tensor) and device is not None:
            return value.to(device)
        return value

    def map(self, file: str) -> memoryview:
        """Return the memory of a file, mapped once."""
        if file not in self._maps:
            with open(file, "rb") as opened:  # noqa: PTH123
                # The map is private: torch wants writable memory, and this must never be written.
                flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
                private = mmap.mmap(opened.fileno(), 0, flags=flags)
            self._maps[file] = memoryview(private)
        return self._maps[file]


def overlap(
    item: Item, offsets: Sequence[int], sizes: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Return start and length per axis of what a stored chunk and a wanted part share, or None."""
    parts = []
    for axis, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        low = max(start, item.offsets[axis])
        high = min(start + size, item.offsets[axis] + item.sizes[axis])
        if high <= low:
            return None
        parts.append((low, high - low))
    return parts


def hull(item: Item, part: Sequence[tuple[int, int]]) -> Range:
    """Return the range of the file from the first to the last byte of a part of a chunk."""
    size, first, last = encoding.ITEM_SIZES[item.dtype], 0, 0
    stride = 1
    for axis in reversed(range(len(part))):
        start = part[axis][0] - item.offsets[axis]
        first += start * stride
        last += (start + part[axis][1] - 1) * stride
        stride *= item.sizes[axis]
    start = start_of(item)
    return start + first * size, start + (last + 1) * size
