"""What the state holds that is made anew whenever it is asked for, and so is asked at each save.

Parameters, buffers and an optimizer's moments stay where they are, and are copied from there. What
a thing's own state_dict() returns need not, nor what a module's get_extra_state() or hooks return.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import traverse_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

from spotelastic.errors import UsageError
from spotelastic.training.state.composite_tensors import inner_tensors, is_made_of_others, refilled
from spotelastic.training.state.module_state import get_model_state_dict
from spotelastic.training.state.tensors import is_value

Path = tuple[str | int, ...]
Place = tuple[Any, torch.Size, tuple[int, ...]] | None
Container = Mapping[str, Any] | list[Any]


def flat_state(name: str, state: Container) -> dict[Path, Any]:
    """As DCP flattens it. Raises `UsageError` where two entries have one path, or none ends."""
    flat: dict[Path, Any] = {}

    def note(path: Path, value: Any) -> None:
        if path in flat:
            raise UsageError(
                f"{shown(path)} is there twice, under keys that are written alike: rename one"
            )
        flat[path] = value

    try:
        traverse_state_dict({name: state}, note)
    except RecursionError:
        raise UsageError(
            f'state["{name}"] is nested too deeply to be saved, or contains itself'
        ) from None
    return flat


def shown(path: Path) -> str:
    """An entry of the state, as one would write it."""
    return "state" + "".join(f'["{key}"]' if isinstance(key, str) else f"[{key}]" for key in path)


def holds_tensors(name: str, value: Any) -> bool:
    """Whether it is a container of tensors, as a state_dict is, at whatever depth."""
    if not isinstance(value, Mapping | list):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in flat_state(name, value).values())


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
        return _structure((self._name,), self._state, self.flat.keys())

    def reader(self, path: Path) -> Callable[[], Any]:
        return lambda: apart(self.flat[path])

    def _ask(self) -> None:
        self._state = self._get()
        self.flat = flat_state(self._name, self._state)

    def _places(self) -> dict[Path, Any]:
        return {path: _place_in_full(leaf) for path, leaf in self.flat.items()}


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
        known = self._places()
        self._keep(get_model_state_dict(self._module))
        return self._places() == known

    def _places(self) -> dict[Path, Any]:
        """Of what is not pickled, but copied from its inner tensors."""
        return {
            path: place(leaf) if is_made_of_others(leaf) else None
            for path, leaf in self.flat.items()
        }

    def structure(self) -> Any:
        return _structure((self._name,), self._state, self.flat.keys())

    def reader(self, path: Path) -> Callable[[], Any]:
        return lambda: apart(self.flat[path])

    def _keep(self, state: Mapping[str, Any]) -> None:
        self._state = {key: state[key] for key in self._keys if key in state}
        self.flat = flat_state(self._name, self._state)


def _storages(module: torch.nn.Module) -> set[int]:
    """Addresses of what training updates in place."""
    return {0, *map(storage_of, chain(module.parameters(), module.buffers()))}


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
    if is_value(value):
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


def apart(value: Any) -> Any:
    """Pickled, a tensor takes along all of the memory that it is a part of."""
    if not isinstance(value, torch.Tensor):
        return value
    try:
        alone = value.detach().clone()
    except NotImplementedError:  # by a class that makes it of others
        return value
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(alone, value.requires_grad)
    return alone


def place(leaf: Any) -> Place:
    """Where a tensor's elements lie, of a sharded one those of this rank, and its shape: what is a
    part of a larger one may grow where it is, or be turned. Nothing of anything else."""
    if not isinstance(leaf, torch.Tensor):
        return None
    try:
        local = (
            leaf._local_tensor if isinstance(leaf, DTensor) else leaf
        )  # no call: it is asked often
        at = local.data_ptr()
        return at or _places_within(local), leaf.shape, leaf.stride()
    except RuntimeError:  # it is pickled
        return None


def _places_within(tensor: torch.Tensor) -> Any:
    """Of what has no memory of its own."""
    return tuple(map(place, inner_tensors(tensor).values()))


def _place_in_full(leaf: Any) -> Any:
    """The same of a tensor that may be another object each time: what else its bytes may mean."""
    found = place(leaf)
    return found and (*found, leaf.dtype, leaf.is_conj(), leaf.is_neg())


def _structure(path: Path, value: Any, leaves: Collection[Path]) -> Any:
    """The containers of a state, with the names of what they hold in its place.

    DCP's names alone do not tell whether a key was "3" or 3, and forget what is empty.
    """
    if path in leaves:
        return ".".join(map(str, path))
    if isinstance(value, list):
        return [_structure((*path, n), entry, leaves) for n, entry in enumerate(value)]
    kept = copy.copy(value) if isinstance(value, MutableMapping) else {}
    if len(set(map(str, value))) < len(value):
        raise UsageError(f"{shown(path)} has two keys that are written alike: rename one")
    for key, entry in value.items():
        kept[key] = _structure((*path, str(key)), entry, leaves)
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


def poured(old: Any, new: Any) -> Any:
    """`new`, in containers that the script may hold."""
    if isinstance(old, MutableMapping) and isinstance(new, Mapping):
        content = {key: poured(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(content)
        return old
    if isinstance(old, list) and isinstance(new, list):
        old[:] = [poured(*pair) for pair in zip_longest(old[: len(new)], new)]
        return old
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old is not new:
        with suppress(RuntimeError, NotImplementedError):  # a new one takes its place then
            return _refilled(old, new)
    return new


def _refilled(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Of one that is pickled: what it has is put into the one that the script holds."""
    if old.layout is torch.sparse_coo and old.dtype is new.dtype and old.layout is new.layout:
        return old.copy_(new)
    return old if refilled(old, new) else new


def named(path: Path, paths: dict[str, Path]) -> str:
    """What DCP calls it. Raises `UsageError` where another entry is called the same, or where it
    cannot be written down."""
    fqn = ".".join(map(str, path))
    if fqn in paths:
        _refuse_name(fqn, paths[fqn], path)
    paths[fqn] = path
    if not fqn.isascii():
        try:
            fqn.encode()
        except UnicodeEncodeError:
            told = shown(path).encode(errors="backslashreplace").decode()
            raise UsageError(f"{told}: this name is no text that can be written") from None
    return fqn


def refuse_names_of_two_paths(named_paths: Iterable[tuple[str, Path]]) -> None:
    """Of all ranks: one may have what is called as another thing of another rank's is. Raises
    `UsageError`, on all alike."""
    known: dict[str, Path] = {}
    for fqn, path in named_paths:
        if known.setdefault(fqn, path) != path:
            _refuse_name(fqn, known[fqn], path)


def _refuse_name(fqn: str, one: Path, other: Path) -> None:
    raise UsageError(
        f"{shown(one)} and {shown(other)} would both be saved as {fqn}: rename one of them"
    )
