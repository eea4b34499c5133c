"""Copies ranges of a file in shared memory into tensors, in several threads and without mapping it.

A fresh map costs a page fault for every few pages, which is more than the copy itself. `preadv`
causes none, and fills a thousand tensors in one call. The interpreter's lock is not held meanwhile.
"""

import ctypes
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter

import torch
from spotelastic_checkpoints.types import Moved

from spotelastic.training.state.tensors import is_raw

THREADS = 4
"""Threads that read at the same time."""
GAP = 4096
"""Bytes between two tensors that are read along and thrown away."""


@dataclass(frozen=True)
class ReadLimits:
    """How much one call reads."""

    at_once: int = 8 << 20
    """Bytes."""
    most_parts: int = 1000
    """Pieces of memory; Linux takes 1024."""


LIMITS = ReadLimits()
Span = tuple[int, memoryview]
"""Offset in the file, and the memory that is filled from there."""
Call = tuple[int, int, list[memoryview]]
"""Offset in the file, number of bytes, and the memory that they go to."""


def can_fill(tensor: torch.Tensor) -> bool:
    """Return whether a tensor can be filled this way."""
    return tensor.is_cpu and is_raw(tensor)


def fill(
    path: str,
    wanted: Sequence[tuple[int, torch.Tensor]],
    moved: Sequence[Moved] = (),
    limits: ReadLimits = LIMITS,
) -> None:
    """Fill each tensor from its offset in the file.

    Ranges that have `moved`, sorted by offset, are read from where they are now. Raises EOFError
    where the file ends too early.
    """
    nowhere = memoryview(bytearray(GAP))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="fill") as pool:
            begun = [
                pool.submit(_read, descriptor, *call)
                for call in calls(_in_order(wanted, moved), nowhere, limits)
            ]
            torch.autograd.graph.increment_version([tensor for _, tensor in wanted])
            for read in begun:
                read.result()
    finally:
        os.close(descriptor)


def _in_order(wanted: Iterable[tuple[int, torch.Tensor]], moved: Sequence[Moved]) -> Iterable[Span]:
    """Yield offset and memory of each tensor, by offset.

    Where nothing has moved, one at a time: the first are read while thousands of others are still
    being looked at.
    """
    spans = (
        (offset, memoryview((ctypes.c_char * nbytes).from_address(tensor.data_ptr())).cast("B"))
        for offset, tensor in sorted(wanted, key=itemgetter(0))
        if (nbytes := tensor.nbytes)
    )
    return sorted(_moved(spans, moved), key=itemgetter(0)) if moved else spans


def _moved(spans: Iterable[Span], moved: Sequence[Moved]) -> Iterator[Span]:
    for offset, memory in spans:
        for start, end, at in _places(offset, offset + len(memory), moved):
            yield at, memory[start - offset : end - offset]


def _places(start: int, end: int, moved: Sequence[Moved]) -> Iterator[tuple[int, int, int]]:
    """Yield all parts of the range with the offset at which each lies now."""
    for first, last, at in moved[bisect_right(moved, start, key=lambda each: each[1]) :]:
        if first >= end:
            break
        if start < first:
            yield start, first, start
            start = first
        yield start, min(end, last), at + start - first
        start = min(end, last)
    if start < end:
        yield start, end, start


def calls(
    spans: Iterable[Span], nowhere: memoryview, limits: ReadLimits = LIMITS
) -> Iterator[Call]:
    """Group spans into calls: neighbours together, long ones in several."""
    begun = end = 0
    parts: list[memoryview] = []
    for offset, memory in spans:
        if parts and (offset - end > GAP or offset < end or len(parts) >= limits.most_parts):
            yield begun, end - begun, parts
            parts = []
        if not parts:
            begun = offset
        elif offset > end:
            parts.append(nowhere[: offset - end])
        end = offset + len(memory)
        if end - begun < limits.at_once:
            parts.append(memory)
            continue
        for start in range(0, len(memory), limits.at_once):
            now = memory[start : start + limits.at_once]
            yield begun, offset + start + len(now) - begun, [*parts, now]
            begun, parts = offset + start + len(now), []
    if parts:
        yield begun, end - begun, parts


def _read(descriptor: int, offset: int, length: int, parts: list[memoryview]) -> None:
    while length:
        count = os.preadv(descriptor, parts, offset)
        if count == 0:
            raise EOFError(f"the file ends {length} bytes before the tensors do")
        offset, length = offset + count, length - count
        if length:
            parts = left_after(parts, count)


def left_after(parts: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return the pieces that are left after a call that read `count` bytes only."""
    left = [*parts]
    while count >= len(left[0]):
        count -= len(left.pop(0))
    return [left[0][count:], *left[1:]]
