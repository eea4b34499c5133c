"""Copies ranges of a file in shared memory into tensors, in several threads and without mapping it.

A fresh map costs a page fault for every few pages, which is more than the copy itself. `preadv`
causes none, and fills a thousand tensors in one call. The interpreter's lock is not held meanwhile.
"""

import ctypes
import functools
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

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
Call = tuple[int, int, list[int]]
"""Offset in the file, number of bytes, and the addresses and lengths they go to, as a flat list."""


@functools.cache
def _preadv() -> Any:
    """Return the C library's call, which only Linux has by this name."""
    call = ctypes.CDLL(None, use_errno=True).preadv64
    call.restype = ctypes.c_ssize_t
    call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    return call


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
    nowhere = ctypes.create_string_buffer(GAP)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="fill") as pool:
            begun = [
                pool.submit(_read, descriptor, *call)
                for call in calls(_in_order(wanted, moved), ctypes.addressof(nowhere), limits)
            ]
            torch.autograd.graph.increment_version([tensor for _, tensor in wanted])
            for read in begun:
                read.result()
    finally:
        os.close(descriptor)


def _in_order(
    wanted: Iterable[tuple[int, torch.Tensor]], moved: Sequence[Moved]
) -> Iterable[tuple[int, int, int]]:
    """Yield offset, address and length of each tensor, by offset.

    Where nothing has moved, one at a time: the first are read while thousands of others are still
    being looked at.
    """
    spans = (
        (offset, tensor.data_ptr(), nbytes)
        for offset, tensor in sorted(wanted, key=itemgetter(0))
        if (nbytes := tensor.nbytes)
    )
    return sorted(_moved(spans, moved)) if moved else spans


def _moved(
    spans: Iterable[tuple[int, int, int]], moved: Sequence[Moved]
) -> Iterator[tuple[int, int, int]]:
    for offset, address, length in spans:
        for start, end, at in _places(offset, offset + length, moved):
            yield at, address + start - offset, end - start


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
    spans: Iterable[tuple[int, int, int]], nowhere: int, limits: ReadLimits = LIMITS
) -> Iterator[Call]:
    """Group spans into calls: neighbours together, long ones in several."""
    begun = end = 0
    parts: list[int] = []
    for offset, address, length in spans:
        if parts and (offset - end > GAP or offset < end or len(parts) >= 2 * limits.most_parts):
            yield begun, end - begun, parts
            parts = []
        if not parts:
            begun = offset
        elif offset > end:
            parts += nowhere, offset - end
        end = offset + length
        if end - begun < limits.at_once:
            parts += address, length
            continue
        for start in range(0, length, limits.at_once):
            now = min(limits.at_once, length - start)
            parts += address + start, now
            yield begun, offset + start + now - begun, parts
            begun, parts = offset + start + now, []
    if parts:
        yield begun, end - begun, parts


def _read(descriptor: int, offset: int, length: int, parts: list[int]) -> None:
    preadv = _preadv()
    while length:
        vector = (ctypes.c_size_t * len(parts))(*parts)
        count = preadv(descriptor, vector, len(parts) // 2, offset)
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if count == 0:
            raise EOFError(f"the file ends {length} bytes before the tensors do")
        offset, length = offset + count, length - count
        if length:
            parts = left_after(parts, count)


def left_after(parts: list[int], count: int) -> list[int]:
    """Return the pieces that are left after a call that read `count` bytes only."""
    left = list(parts)
    while count >= left[1]:
        count -= left[1]
        del left[:2]
    return [left[0] + count, left[1] - count, *left[2:]]
