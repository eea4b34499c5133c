"""One number of all that was trained, by which runs are compared.

Each rank adds up what it has of each tensor, element by element: a mix of the element's bits and of
its place in the whole tensor. So the sums depend neither on the ranks that have its parts, nor on
the pieces in which they are added, and are computed where the tensors are.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch

from spotelastic.training.state.chunks import Chunk, Key, dtype_name
from spotelastic.training.state.state import StateView

Sums = tuple[str, tuple[int, ...]]
"""Dtype and shape of a tensor, and the sums of a part of it."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Integers of as many bytes as an element has; complex numbers have two of them."""
_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
_ODD = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB)
_ALL = (1 << 64) - 1


def own_sums(state: StateView, *, leads: bool) -> dict[Key, Sums]:
    """Return the sums of what this rank has. What all ranks have alike, the one that leads adds."""
    return {
        each.key: (f"{dtype_name(each.tensor)}{each.shape}", _sums(each))
        for each in state.chunks
        if leads or each.fqn in state.sharded
    }


def fingerprint(ranks: Iterable[Mapping[Key, Sums]]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and sums of all tensors, by all ranks."""
    parts = {key: its for rank in ranks for key, its in rank.items()}
    tensors = defaultdict[tuple[str, str], list[tuple[int, ...]]](list)
    for (fqn, _), (kind, sums) in parts.items():
        tensors[fqn, kind].append(sums)
    whole = hashlib.sha256()
    for (fqn, kind), found in sorted(tensors.items()):
        total = [sum(column) & _ALL for column in zip(*found, strict=True)]
        whole.update(f"{fqn};{kind};{total};".encode())
    return whole.hexdigest()


@torch.no_grad()
def _sums(chunk: Chunk) -> tuple[int, ...]:
    here = chunk.tensor.resolve_conj().resolve_neg().contiguous()
    bits = here.reshape(-1).view(_BITS[here.element_size()]).to(torch.int64)
    places = _places(chunk, here.device).reshape(-1)
    if len(bits) > len(places):
        places = torch.stack((2 * places, 2 * places + 1), dim=1).reshape(-1)
    mixed = (_mix(_mix(bits + _signed(seed)) + places * _signed(_ODD[0])) for seed in _SEEDS)
    return tuple(int(each.sum()) & _ALL for each in mixed)


def _places(chunk: Chunk, device: torch.device) -> torch.Tensor:
    """Return the place of each element of a chunk in its whole tensor, counted row by row."""
    places, stride = torch.zeros((), dtype=torch.int64, device=device), 1
    axes = len(chunk.sizes)
    for axis in reversed(range(axes)):
        along = torch.arange(chunk.sizes[axis], device=device) + chunk.offsets[axis]
        places = places + (along * stride).reshape(-1, *(1,) * (axes - axis - 1))
        stride *= chunk.shape[axis]
    return places


def _mix(values: torch.Tensor) -> torch.Tensor:
    """Return numbers of 64 bits in which each bit depends on all of the given ones (splitmix64)."""
    for shift, odd in ((30, _ODD[1]), (27, _ODD[2])):
        values = (values ^ _shifted(values, shift)) * _signed(odd)
    return values ^ _shifted(values, 31)


def _shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    return (values >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    """Return the number of torch's 64-bit integers that has these bits."""
    return value - (1 << 64) if value >> 63 else value
