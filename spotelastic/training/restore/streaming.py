"""Fills tensors window by window from a checkpoint's file, while the next windows are fetched.

This is for tensors that are stored exactly as they are here. A window that all ranks have read is
freed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from spotelastic_checkpoints.restore.contents import Piece
from spotelastic_checkpoints.types import Moved, Range

from spotelastic.training.restore import shm_copy
from spotelastic.training.state.tensors import is_raw, pour

WINDOW = 32 << 20
"""Bytes of a window, which holds at least one tensor."""
AHEAD = 3
"""Windows that are being fetched while one is read."""


class Copy(NamedTuple):
    """A tensor, and the stored piece that fills it exactly."""

    piece: Piece
    tensor: torch.Tensor

    @property
    def start(self) -> int:
        """Where the piece begins in its file."""
        return self.piece.item.offset

    @property
    def end(self) -> int:
        """Where the piece ends in its file."""
        return self.piece.item.offset + self.piece.item.length


class Window(NamedTuple):
    """Copies that are neighbours in one file, and the ranges of it that they need."""

    copies: Sequence[Copy]
    ranges: Sequence[Range]

    @property
    def start(self) -> int:
        """Offset before which neither this window nor a later one needs anything."""
        return self.ranges[0][0]


def windows(copies: Iterable[Copy], size: int = WINDOW) -> Iterator[Window]:
    """Group copies into windows of this size, in the order of the file.

    The order is the same for all ranks.
    """
    window: list[Copy] = []
    for copy in sorted(copies, key=lambda copy: copy.start):
        if window and copy.end - window[0].start > size:
            yield _window(window)
            window = []
        window.append(copy)
    if window:
        yield _window(window)


def _window(copies: Sequence[Copy]) -> Window:
    return Window(copies, joined((copy.start, copy.end) for copy in copies))


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges and join those that lie close together."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + shm_copy.GAP:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


@torch.no_grad()
def fill(
    file: str, copies: Iterable[Copy], moved: Sequence[Moved] = (), size: int = WINDOW
) -> None:
    """Fill tensors from a file that holds all of them, where some ranges may have `moved` in it.

    What cannot be read into directly takes `size` bytes more at a time.
    """
    direct, others = [], []
    for copy in copies:
        offset = copy.end - copy.tensor.nbytes
        if shm_copy.can_fill(copy.tensor):
            direct.append((offset, copy.tensor))
            continue
        for part in _parts(copy.tensor, size):
            others.append((offset, part))
            offset += part.nbytes
    shm_copy.fill(file, direct, moved)
    for batch in _batches(others, size):
        # What lies in several places cannot be mapped as one.
        staged = [torch.empty(part.shape, dtype=part.dtype) for _, part in batch]
        shm_copy.fill(
            file, [(at, here) for (at, _), here in zip(batch, staged, strict=True)], moved
        )
        pour([part for _, part in batch], staged)


def _parts(tensor: torch.Tensor, size: int) -> Sequence[torch.Tensor]:
    """Cut a tensor into parts of at most `size` bytes, where its elements lie in order."""
    if not is_raw(tensor):
        return [tensor]
    flat, most = tensor.view(-1), size // tensor.element_size()
    return [flat[start : start + most] for start in range(0, len(flat), most)]


def _batches(
    parts: Iterable[tuple[int, torch.Tensor]], most: int
) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Group parts into batches of at most these bytes, or of one part."""
    batch: list[tuple[int, torch.Tensor]] = []
    size = 0
    for offset, part in parts:
        if batch and size + part.nbytes > most:
            yield batch
            batch, size = [], 0
        batch.append((offset, part))
        size += part.nbytes
    if batch:
        yield batch
