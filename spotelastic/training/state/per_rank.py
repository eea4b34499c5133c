"""Provides `PerRank`, which marks state that each rank keeps for itself and gets back.

    loader = StatefulDataLoader(...)
    state = {"model": model, "loader": se.PerRank(loader)}

With another number of ranks, a function says what each rank gets:

    se.PerRank(loader, merge=lambda saved, rank, world_size: saved[rank % len(saved)])
"""

from collections.abc import Callable, MutableMapping
from typing import Any, Generic, TypeVar

import torch
from torch.distributed.tensor import DTensor

from spotelastic.errors import UsageError
from spotelastic.training.state.derived import apart, copied_into, dressed, poured
from spotelastic.training.state.generators import SavedGenerator, is_generator
from spotelastic.training.state.tensors import is_value

T = TypeVar("T")
Merge = Callable[[list[Any], int, int], Any]
"""Takes what all ranks saved, a rank and the world size; returns what that rank loads."""


class PerRank(Generic[T]):
    """Wraps an entry of the state that differs from rank to rank on purpose.

    `value` is anything that a state can hold: an object with `state_dict()` and
    `load_state_dict()`, a generator of random numbers, a tensor, a container or a plain value. Each
    rank gets back what it saved. Plain values are replaced, so read them as `.value`.

    `merge(saved, rank, world_size)` is called if the run resumes with another number of ranks. It
    receives what all ranks saved, in their order, and returns what this rank loads. Without it such
    a restore is refused.
    """

    def __init__(self, value: T, merge: Merge | None = None) -> None:
        if isinstance(value, PerRank):
            raise UsageError("se.PerRank(...) around another se.PerRank(...): remove one of them")
        self.value = value
        self.merge = merge

    def saved(self, name: str) -> Any:
        """Return what is pickled."""
        value = _stateful(self.value)
        if isinstance(value, torch.Generator):
            found: Any = value.get_state()
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            found = value.state_dict()
        else:
            found = value
        return _apart(name, found)

    def load(self, saved: Any) -> None:
        """Load what `saved` returned when it was saved."""
        value = _stateful(self.value)
        if isinstance(value, torch.Generator):
            value.set_state(saved)
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            value.load_state_dict(saved)
        else:
            with torch.no_grad():
                self.value = poured(value, saved, leaf=copied_into)


def _stateful(value: Any) -> Any:
    """Return what saves a generator that is not torch's; anything else as it is."""
    is_torchs = isinstance(value, torch.Generator)
    return SavedGenerator(value) if is_generator(value) and not is_torchs else value


def _apart(name: str, value: Any) -> Any:
    """Return a value whose tensors are without the rest of the memory that they are parts of."""
    if isinstance(value, DTensor):
        raise UsageError(
            f"{name}: a sharded tensor is each rank's own already: remove se.PerRank(...)"
        )
    if isinstance(value, torch.Tensor):
        if is_value(value) or value.untyped_storage().nbytes() != value.nbytes:
            return apart(value)
        parameter = isinstance(value, torch.nn.Parameter)
        return dressed(value.detach(), parameter, value.requires_grad, None)
    if type(value) in (list, tuple):
        return type(value)(_apart(name, entry) for entry in value)
    if isinstance(value, MutableMapping) and hasattr(value, "copy"):
        copied = value.copy()
        for key, entry in copied.items():
            copied[key] = _apart(name, entry)
        return copied
    return value
