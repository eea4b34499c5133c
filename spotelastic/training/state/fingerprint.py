"""One hash of all that was trained, by which runs are compared."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from spotelastic.training.state.chunks import Chunk
from spotelastic.training.state.state import StateView

_THREADS = 4


def fingerprint(state: StateView) -> str:
    """Return a SHA-256 of all tensors of a state, with their names.

    Empty where some are sharded, so that this rank does not have them.

    It does not depend on how many ranks have the state, nor on wrappers, devices, or the pieces in
    which tensors are saved.
    """
    if state.sharded:
        return ""
    pieces = defaultdict[str, list[Chunk]](list)
    for chunk in sorted(state.chunks, key=lambda each: each.key):
        pieces[chunk.fqn].append(chunk)
    whole = hashlib.sha256()
    with ThreadPoolExecutor(_THREADS) as pool:
        for name, digest in zip(pieces, pool.map(_digest, pieces.values()), strict=True):
            whole.update(f"{name};".encode() + digest)
    return whole.hexdigest()


@torch.no_grad()
def _digest(pieces: Sequence[Chunk]) -> bytes:
    """Return the SHA-256 of a tensor, whose pieces are in the order of their elements."""
    first = pieces[0]
    found = hashlib.sha256(f"{first.tensor.dtype}{first.shape};".encode())
    for piece in pieces:
        here = piece.tensor.resolve_conj().resolve_neg().contiguous().cpu()
        found.update(here.reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()
