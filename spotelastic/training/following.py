"""What the state holds that is made anew whenever it is asked for, and so is asked at each save.

Parameters, buffers and an optimizer's moments stay where they are, and are copied from there. What
a thing's own state_dict() returns need not, nor what a module's get_extra_state() or hooks return.
"""

import copy
import itertools
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

from spotelastic.errors import UsageError

Path = tuple[str | int, ...]
Place = tuple[int, torch.Size] | None
Container = Mapping[str, Any] | list[Any]


def flat_state(name: str, state: Container) -> dict[Path, Any]:
    values, paths = flatten_state_dict({name: state})
    return {paths[fqn]: value for fqn, value in values.items()}


def holds_tensors(value: Any) -> bool:
    """Whether it is a container of tensors, as a state_dict is, at whatever depth."""
    if not isinstance(value, Mapping | list):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in flat_state("", value).values())


class Followed:
    """What a thing's state_dict() returns, or what a container holds: `get` is asked once per save,
    when it is checked."""

    def __init__(self, name: str, get: Callable[[], Container]) -> None:
        self._name, self._get = name, get
        self._ask()
        self._known = self._places()

    def is_current(self) -> bool:
        self._ask()
        return self._places() == self._known

    def structure(self) -> Any:
        return _structure(self._name, self._state, _names(self.flat))

    def reader(self, path: Path) -> Callable[[], Any]:
        return lambda: self.flat[path]

    def _ask(self) -> None:
        self._state = self._get()
        self.flat = flat_state(self._name, self._state)

    def _places(self) -> dict[Path, Place]:
        return {path: place(leaf) for path, leaf in self.flat.items()}


class Remade:
    """Those entries of a module's state that are neither parameters nor buffers, nor parts of one.

    They are values, whatever they are: a tensor among them may be of another size each time. Asked
    once per save, when they are checked; not at all where there are none.
    """

    def __init__(self, name: str, module: torch.nn.Module, state: Mapping[str, Any]) -> None:
        self._name, self._module = name, module
        storages = _storages(module)
        self._keys = [key for key, value in state.items() if _is_remade(key, value, storages)]
        self._keep(state)

    @property
    def names(self) -> set[str]:
        """Of the entries, each of which may be a container of several values."""
        return {f"{self._name}.{key}" for key in self._keys}

    def is_current(self) -> bool:
        if not self._keys:
            return True
        known = self.flat.keys()
        self._keep(get_model_state_dict(self._module))
        return self.flat.keys() == known

    def structure(self) -> Any:
        return _structure(self._name, self._state, _names(self.flat))

    def reader(self, path: Path) -> Callable[[], Any]:
        return lambda: _apart(self.flat[path])

    def _keep(self, state: Mapping[str, Any]) -> None:
        self._state = {key: state[key] for key in self._keys if key in state}
        self.flat = flat_state(self._name, self._state)


def _storages(module: torch.nn.Module) -> set[int]:
    """Addresses of what training updates in place."""
    return {0, *map(storage_of, itertools.chain(module.parameters(), module.buffers()))}


def storage_of(tensor: torch.Tensor) -> int:
    """Address of the memory that a tensor, or this rank's part of it, is in; 0 where it is empty or
    made of other tensors."""
    try:
        return _local(tensor).untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def _is_remade(key: str, value: Any, storages: Collection[int]) -> bool:
    """Raises `UsageError` for what cannot be asked for at each save."""
    if key.endswith(_EXTRA_STATE_KEY_SUFFIX) or not torch.is_tensor(value):
        return True
    if storage_of(value) in storages:
        return False
    if isinstance(value, DTensor):
        raise UsageError(
            f"{key}: its module gathers this sharded tensor anew for each state_dict(), as "
            "FullyShardedDataParallel does: shard the module with fully_shard instead"
        )
    return True


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _apart(value: Any) -> Any:
    """Pickled, a tensor takes along all of the memory that it is a part of."""
    return value.detach().clone() if torch.is_tensor(value) else value


def place(leaf: Any) -> Place:
    """Where a tensor's elements lie, of a sharded one those of this rank, and its shape: what is a
    part of a larger one may grow where it is. Nothing of anything else."""
    return (_local(leaf).data_ptr(), leaf.shape) if isinstance(leaf, torch.Tensor) else None


def _names(paths: Collection[Path]) -> set[str]:
    return {".".join(map(str, path)) for path in paths}


def _structure(fqn: str, value: Any, leaves: Collection[str]) -> Any:
    """The containers of a state, with the names of what they hold in its place.

    DCP's names alone do not tell whether a key was "3" or 3, and forget what is empty.
    """
    if fqn in leaves:
        return fqn
    if isinstance(value, list):
        return [_structure(f"{fqn}.{n}", entry, leaves) for n, entry in enumerate(value)]
    kept = copy.copy(value) if isinstance(value, MutableMapping) else {}
    for key, entry in value.items():
        kept[key] = _structure(f"{fqn}.{key}", entry, leaves)
    return kept


def filled(structure: Any, get: Callable[[str], Any]) -> Any:
    """The reverse: the containers of a structure, with what `get` has under each of its names."""
    if isinstance(structure, str):
        return get(structure)
    if isinstance(structure, list):
        return [filled(entry, get) for entry in structure]
    for key, entry in structure.items():
        structure[key] = filled(entry, get)
    return structure
