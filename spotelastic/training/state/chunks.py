"""Cuts a state's tensors into the chunks that are saved one by one, sharded tensors included."""

from typing import NamedTuple

import torch
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.format.layout import Declared
from torch.distributed.tensor import DTensor

from spotelastic.errors import UsageError
from spotelastic.training.state import tensors
from spotelastic.training.state.compatibility import Path

PIECE = 32 << 20
"""Bytes above which a tensor, or a rank's part of one, is split.

Files stay short then, and ranks share the upload of what they have in common.
"""
Key = tuple[str, tuple[int, ...]]
"""Identifies an item within a state: its name and offsets."""


class Chunk(NamedTuple):
    """A tensor, or the part of one that this rank has, with its place in the whole."""

    fqn: str
    path: Path
    tensor: torch.Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def key(self) -> Key:
        """Identifies the chunk within the state."""
        return self.fqn, self.offsets

    def declared(self, *, lowest: bool = False) -> Declared:
        """Return the chunk's declaration. Raises `UsageError` where it cannot be saved.

        `lowest` says that the lowest rank's copy counts.
        """
        dtype = dtype_name(self.tensor)
        if problem := tensors.has_nothing(self.tensor):
            raise UsageError(f"{self.fqn} {problem}")
        if dtype not in encoding.ITEM_SIZES:
            raise UsageError(f"{self.fqn}: tensors of dtype {dtype} cannot be saved")
        return Declared(
            self.fqn, self.path, dtype, self.shape, self.offsets, self.sizes, lowest=lowest
        )


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype, without "torch."."""
    return str(tensor.dtype).removeprefix("torch.")


def chunks_of(fqn: str, path: Path, tensor: torch.Tensor, piece: int = PIECE) -> list[Chunk]:
    """Return the pieces of a tensor that are saved one by one; of a DTensor, those on this rank.

    One of more than `piece` bytes is cut.
    """
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return _pieces(fqn, path, tensor.detach(), shape, (0,) * len(shape), piece)
    local = tensor.to_local().detach()
    # By this, torch's own checkpoints know it, too.
    [part] = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    if not local.numel() and tensor.numel():
        return []
    return _pieces(fqn, path, local, shape, tuple(part.offsets), piece)


def _pieces(
    fqn: str,
    path: Path,
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    offsets: tuple[int, ...],
    piece: int,
) -> list[Chunk]:
    """Return the pieces of what begins at `offsets` of a tensor of this shape.

    A small one is one piece. A large one is cut into rows of the first axis that has several.
    """
    axis = next((at for at, size in enumerate(tensor.shape) if size > 1), None)
    if axis is None or tensor.nbytes <= piece:
        return [Chunk(fqn, path, tensor, shape, offsets, tuple(tensor.shape))]
    rows = tensor.shape[axis]
    at_once = max(1, piece * rows // tensor.nbytes)
    parts = []
    for start in range(0, rows, at_once):
        part = tensor.narrow(axis, start, min(at_once, rows - start))
        place = (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :])
        parts += _pieces(fqn, path, part, shape, place, piece)
    return parts
