"""Notes what this rank has in its state at the first save of a run."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from spotelastic_checkpoints.commit.first_save import FirstSave, key

from spotelastic.training.state import rank_agreement, values
from spotelastic.training.state.state import StateView


def of(view: StateView, rank: int, step: int) -> FirstSave:
    """Return the note. Leave it in the arena's folder before the save is sealed."""
    return FirstSave(
        rank,
        step,
        {name: digest or b"" for name, digest in _digests(view)},
        tuple(sys.path),
        allowed(),
    )


def allowed() -> tuple[str, ...]:
    """Return what the script lets its values refer to, each as "module:name"."""
    return tuple(_named(each) for each in torch.serialization.get_safe_globals())


def _digests(view: StateView) -> Iterator[tuple[str, rank_agreement.Digest | None]]:
    for (fqn, offsets), digest in rank_agreement.digests_of(view.chunks).items():
        yield key(fqn, offsets), digest
    for entry in view.entries:
        if entry.is_of_script:
            # What is compared is decoded here as well: on a device a tensor has another hash.
            value = values.decode(entry.shown, values.encode(entry.shown, entry.get()))
            yield entry.fqn, rank_agreement.digest_of_value(value)


def _named(allowed: Any) -> str:
    """Return what a value may refer to as "module:name"."""
    thing = allowed[0] if isinstance(allowed, tuple) else allowed
    module = inspect.getmodule(thing)
    name = getattr(thing, "__module__", None) or (module.__name__ if module else "")
    return f"{name}:{getattr(thing, '__qualname__', '')}"
