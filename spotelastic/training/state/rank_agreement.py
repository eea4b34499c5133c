"""Checks by hashes that ranks have the same content in everything that is saved only once.

One copy is saved, and all ranks get that back. Where ranks differ, that would change training
silently, so that the save is refused instead, on all ranks alike. Sharded tensors are not compared:
their placements say what each rank has.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import xxhash

from spotelastic.errors import UsageError
from spotelastic.training.state.chunks import Chunk
from spotelastic.training.state.state import StateView
from spotelastic.training.state.value_entries import OWN, STRUCTURE, ValueEntry

Name = tuple[str, tuple[int, ...]]
"""Name of an item, with its offsets."""
Digest = bytes
"""Hash of an item's content."""

_THREADS = 4
_PIECE = 1 << 22
"""Words of a tensor that are added up at once."""
_SIMPLE = frozenset({type(None), bool, int, float, str})
LARGE = 64 << 10
"""Bytes above which a tensor is hashed in a thread, and a value not at each save."""


def digests(view: StateView) -> dict[Name, Digest]:
    """Return the hashes of everything that this rank may have in common with others, by name."""
    told = digests_of(chunk for chunk in view.chunks if chunk.fqn not in view.sharded)
    found = {key: digest for key, digest in told.items() if digest is not None}
    for entry in compared(view.entries):
        digest = digest_of_value(entry.get())
        if digest is not None:
            found[entry.key] = digest
    return found


def digests_of(chunks: Iterable[Chunk]) -> dict[Name, Digest | None]:
    """Return the hashes of tensors, by name; None for those that have no bytes of their own."""
    large, small = list[Chunk](), list[Chunk]()
    for chunk in chunks:
        (large if chunk.tensor.nbytes > LARGE else small).append(chunk)
    # Hashing lets other threads run. Many small tensors are not worth handing to a thread.
    with ThreadPoolExecutor(_THREADS) as pool:
        digest_of = {chunk.key: pool.submit(_digest_of_any, chunk.tensor).result for chunk in large}
        told = {chunk.key: _digest_of_any(chunk.tensor) for chunk in small}
        return told | {key: digest() for key, digest in digest_of.items()}


def compared(entries: Iterable[ValueEntry]) -> list[ValueEntry]:
    """Return the values that have to be the same on all ranks that have them."""
    return [entry for entry in entries if _is_compared(entry)]


def _is_compared(entry: ValueEntry) -> bool:
    path = entry.path
    if path[0] == OWN:
        return path[1] == STRUCTURE  # the only ones of ours that have to be the same
    # These are the parameters that an optimizer has on this rank. Pipeline stages each have others.
    is_of_group = len(path) == 4 and path[1] == "param_groups" and path[3] == "params"
    return not is_of_group


def differing(by_rank: Sequence[Mapping[Name, Digest]]) -> dict[Name, tuple[int, ...]]:
    """Return what differs, by name, with the ranks that differ from the first that has it."""
    first: dict[Name, Digest] = {}
    others: dict[Name, list[int]] = defaultdict(list)
    for rank, found in enumerate(by_rank):
        for name, digest in found.items():
            if first.setdefault(name, digest) != digest:
                others[name].append(rank)
    return {name: tuple(others[name]) for name in sorted(others)}


def refuse(different: Mapping[Name, Sequence[int]]) -> None:
    """Raise `UsageError` where anything differs."""
    told = {name: ranks for (name, _), ranks in different.items()}
    if not told:
        return
    fqn, ranks = next(iter(told.items()))
    entry = fqn.removeprefix(f"{OWN}.{STRUCTURE}.")
    more = f" (and {len(told) - 1:,} more)" if len(told) > 1 else ""
    who = f"rank {ranks[0]} differs" if len(ranks) == 1 else f"ranks {_listed(ranks)} differ"
    raise UsageError(
        f"{entry}{more} is not the same on all ranks: {who} from the first that has it. "
        "One copy would be saved for all: make it the same everywhere, or keep each rank's own "
        f"with se.PerRank(..., merge=function) around the entry {entry.partition('.')[0]!r}"
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")


# -- hashes ---------------------------------------------------------------------------------------


@torch.no_grad()
def digest_of_tensor(tensor: torch.Tensor, *, like: Digest = b"") -> Digest:
    """Return a hash of a tensor's bytes, dtype and shape. On a device it is computed there.

    To be compared with another one, `like`, it is computed as that one was.
    """
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if tensor.device.type == "cpu" and like[:1] != b"s":
        return b"x" + xxhash.xxh3_128(flat.numpy().data).digest() + head
    return b"s" + _sums(flat) + head


def _digest_of_any(tensor: torch.Tensor) -> Digest | None:
    """Return the hash; None for a subclass that has no bytes of its own."""
    try:
        return digest_of_tensor(tensor)
    except RuntimeError:
        return None


def _sums(flat: torch.Tensor) -> bytes:
    """Return two sums over bytes on a device. They are exact, in whatever order they are added."""
    whole = flat.numel() // 8 * 8
    if flat.storage_offset() % 8:
        flat = flat.clone()
    words = flat[:whole].view(torch.int64)
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    # In pieces: a device may have little memory left.
    for start in range(0, words.numel(), _PIECE):
        some = words[start : start + _PIECE]
        weights = torch.arange(2 * start + 1, 2 * (start + some.numel()) + 1, 2, device=flat.device)
        sums += torch.stack([some.sum(), weights.mul_(some).sum()])
    return struct.pack("<2q", *sums.tolist()) + bytes(flat[whole:].tolist())


def digest_of_value(value: Any) -> Digest | None:
    """Return a hash that is the same for equal values, whatever the order of their keys.

    None where that cannot be told.
    """
    digest = xxhash.xxh3_128()
    try:
        _add(digest, value, ())
    except Exception:  # Taking apart an object of any class may raise anything.
        return None
    return digest.digest()


def hash_of_values(entries: Iterable[ValueEntry]) -> str:
    """Return one hash of all values.

    Called at each save: numbers and names cost next to nothing.
    """
    values = (entry.get() for entry in entries)
    found = [
        repr(value) if type(value) in _SIMPLE else repr(digest_of_value(value)) for value in values
    ]
    return xxhash.xxh3_128_hexdigest(";".join(found).encode(errors="surrogatepass"))


def _add(digest: "xxhash.xxh3_128", value: Any, within: tuple[int, ...]) -> None:
    if id(value) in within:
        digest.update(b"cycle")
        return
    kind = type(value)
    digest.update(f"{kind.__module__}.{kind.__qualname__};".encode())
    if isinstance(value, torch.Tensor):
        digest.update(str(value.layout).encode())
        for part in _parts(value):
            digest.update(digest_of_tensor(part))
    elif isinstance(value, float):
        digest.update(struct.pack("<d", value))
    elif value is None or isinstance(value, bool | int | complex):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, str | bytes | bytearray):
        data = value.encode(errors="surrogatepass") if isinstance(value, str) else bytes(value)
        digest.update(len(data).to_bytes(8, "little") + data)
    elif isinstance(value, Mapping):
        _add_sorted(digest, value.items(), (*within, id(value)))
    elif isinstance(value, set | frozenset):
        _add_sorted(digest, value, (*within, id(value)))
    elif isinstance(value, list | tuple):
        digest.update(len(value).to_bytes(8, "little"))
        for entry in value:
            _add(digest, entry, (*within, id(value)))
    elif isinstance(value, type) or callable(value):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
    else:  # These are numpy's, and whatever else pickles.
        reduced = value.__reduce_ex__(4)
        parts = [reduced] if isinstance(reduced, str) else [*reduced[:3], *map(_all, reduced[3:])]
        _add(digest, parts, (*within, id(value)))


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that a sparse or quantized tensor consists of."""
    if tensor.layout is not torch.strided and not tensor.is_nested:
        coalesced = tensor.detach().to_sparse(layout=torch.sparse_coo).coalesce()
        return [torch.tensor(tensor.shape), coalesced.indices(), coalesced.values()]
    if tensor.is_quantized:
        return [tensor.int_repr(), torch.dequantize(tensor)]
    return [tensor]


def _all(entries: Iterable[Any] | None) -> list[Any]:
    return [] if entries is None or callable(entries) else list(entries)


def _add_sorted(digest: "xxhash.xxh3_128", entries: Iterable[Any], within: tuple[int, ...]) -> None:
    found = []
    for entry in entries:
        one = xxhash.xxh3_128()
        _add(one, entry, within)
        found.append(one.digest())
    digest.update(len(found).to_bytes(8, "little") + b"".join(sorted(found)))
