"""Captures and restores each rank's random number generators, or derives new states from a seed.

States are derived when a run resumes on another number of ranks, or a rank's own state is lost.
"""

import hashlib
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """Return the state of every generator that a training loop uses, without tensors in it."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": _bytes(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (name, keys.tobytes(), position, has_gauss, gauss)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # asking would do that, too
        state["cuda"] = _bytes(torch.cuda.get_rng_state())
    return state


def apply(state: dict[str, Any]) -> None:
    """Restore a state that `capture` returned."""
    random.setstate(state["python"])
    torch.set_rng_state(_tensor(state["torch"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, gauss = state["numpy"]
        words = numpy.frombuffer(keys, dtype=numpy.uint32)
        numpy.random.set_state((name, words, position, has_gauss, gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(state["cuda"]))


def derive(seed: int | None, step: int | str, rank: int, *, often: bool = False) -> None:
    """Seed all generators. The state depends on seed, step and rank only.

    `often` leaves out those of devices that are not in use yet. To note what is to be done with
    these takes torch half a millisecond.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "little") >> 1
    random.seed(value)
    if not often:
        torch.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFF_FFFF)


def _bytes(state: torch.Tensor) -> bytes:
    return state.cpu().numpy().tobytes()


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
