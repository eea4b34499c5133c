"""Handles entries of the state that are made anew on request, and so are requested for each save.

Parameters, buffers and an optimizer's moments stay where they are, and are copied from there. What
an object's own state_dict() returns need not stay, nor what a module's get_extra_state() or hooks
return.
"""

import copy
import functools
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from spotelastic.errors import UsageError
from spotelastic.training.state.composite_tensors import inner_tensors, is_made_of_others, refilled
from spotelastic.training.state.module_state import get_model_state_dict
from spotelastic.training.state.tensors import is_value, local_part

Path = tuple[str | int, ...]
Place = tuple[Any, ...] | None
"""Where a tensor lies, and what else says what its bytes mean; None for what is pickled."""
Container = Mapping[str, Any] | list[Any]
"""A mapping or a list of the state."""
NamedLeaf = tuple[str, str, bool, bool, type | None]
"""Stands in a structure for a tensor that is more than its elements.

It has its name, the name of the first tensor in the same place, whether it is a parameter and is
trained, and its class if that is odd.
"""
EXTRA_STATE = "_extra_state"
"""Last part of the name under which a module saves what its get_extra_state() returns."""
_KNOWN = torch.Tensor, torch.nn.Parameter, DTensor


def flat_state(name: str, state: Container) -> dict[Path, Any]:
    """Flatten a nested state as DCP does, by path.

    Raises `UsageError` where two entries have the same path, or it contains itself.
    """
    flat: dict[Path, Any] = {}

    try:
        for path, leaf in _leaves((name,), state):
            if path in flat:
                raise UsageError(
                    f"{shown(path)} appears twice, under keys that look the same: rename one"
                )
            flat[path] = leaf
    except RecursionError:
        raise UsageError(
            f'state["{name}"] is nested too deeply to be saved, or contains itself'
        ) from None
    return flat


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if _is_leaf(value):
        yield path, value
        return
    for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves((*path, key if isinstance(value, list) else str(key)), each)


def _is_leaf(value: Any) -> bool:
    """Return whether DCP saves a value as one: a list, if no tensor and no mapping is in it."""
    if isinstance(value, list):
        return not any(isinstance(each, torch.Tensor) or not _is_leaf(each) for each in value)
    return not isinstance(value, Mapping)


def set_element(nested: Any, path: Path, value: Any) -> None:
    """Set an entry of a nested state; containers on the way are made, lists for numbers."""
    steps: Any = zip(path, (*path[1:], None), strict=True)
    for key, after in steps:
        if isinstance(nested, list):
            nested.extend([None] * (key + 1 - len(nested)))
        if after is None:
            nested[key] = value
        elif (nested[key] if isinstance(nested, list) else nested.get(key)) is None:
            nested[key] = {} if isinstance(after, str) else []
        nested = nested[key]


def shown(path: Path) -> str:
    """Return an entry of the state as a script would write it."""
    return "state" + "".join(
        f"[{json.dumps(key, ensure_ascii=False) if isinstance(key, str) else key}]" for key in path
    )


def tensors_in(name: str, value: Any) -> dict[Path, torch.Tensor]:
    """Return the tensors of a container, at any depth, as in a state_dict; else none."""
    if not isinstance(value, Mapping | list):
        return {}
    leaves = flat_state(name, value).items()
    return {path: leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}


class Followed:
    """What an object's state_dict() returns, or what a container holds.

    `get` is called once per save, when it is checked.
    """

    def __init__(
        self, name: str, get: Callable[[], Container], now: Container | None = None
    ) -> None:
        """`now` is what `get` returns, where that is known."""
        self._name, self._get = name, get
        self._note(get() if now is None else now)
        self._known = self._places()

    def is_current(self) -> bool:
        """Ask again, and return whether everything is where it was."""
        self._note(self._get())
        return self._places() == self._known

    def structure(self) -> Any:
        """Return the containers, with names in place of what they hold."""
        return structure_of((self._name,), self._state, self.flat)

    def reader(self, path: Path) -> Callable[[], Any]:
        """Return a function that returns the entry as of the last check."""
        return lambda: apart(self.flat[path])

    def _note(self, state: Container) -> None:
        self._state, self.flat = state, flat_state(self._name, state)

    def _places(self) -> dict[Path, Any]:
        return {path: place(leaf) for path, leaf in self.flat.items()}


class Remade(Followed):
    """Entries of a module's state that are neither parameters nor buffers, nor parts of one.

    All of them are values, because a tensor among them may have another size each time. The module
    is asked once per save, when they are checked, and not at all where there are none.
    """

    def __init__(self, name: str, module: torch.nn.Module, state: Mapping[str, Any]) -> None:
        storages = _storages(module)
        self._keys = [key for key, value in state.items() if _is_remade(key, value, storages)]
        super().__init__(name, lambda: self._of(get_model_state_dict(module)), self._of(state))

    @property
    def names(self) -> set[str]:
        """Names of the entries, each of which may be a container of several values."""
        return {f"{self._name}.{key}" for key in self._keys}

    def is_current(self) -> bool:
        """Ask again, and return whether everything is where it was."""
        return not self._keys or super().is_current()

    def _of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {key: state[key] for key in self._keys if key in state}

    def _places(self) -> dict[Path, Any]:
        """Return where tensors are that are copied from their inner tensors, not pickled."""
        return {
            path: place(leaf) if is_made_of_others(leaf) else None
            for path, leaf in self.flat.items()
        }


def _storages(module: torch.nn.Module) -> set[int]:
    """Return the addresses of what training updates in place."""
    return {0, *map(storage_of, chain(module.parameters(), module.buffers()))}


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of the memory of a tensor, or of this rank's part of it.

    It is 0 where the tensor is empty or is built from others.
    """
    try:
        return local_part(tensor).untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def _is_remade(key: str, value: Any, storages: Collection[int]) -> bool:
    """Return whether the entry is made anew.

    Raises `UsageError` where it cannot be asked for each time.
    """
    if key.endswith(EXTRA_STATE) or not torch.is_tensor(value):
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


def apart(value: Any) -> Any:
    """Return a tensor without the rest of its memory, which would be pickled with it."""
    if not isinstance(value, torch.Tensor):
        return value
    try:
        alone = value.detach().clone()
    except NotImplementedError:  # A class that builds the tensor from others does not allow it.
        return value
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(alone, value.requires_grad)
    return alone.requires_grad_(value.requires_grad)


def place(leaf: Any) -> Place:
    """Return where a tensor's elements lie, or this rank's, and all that says what they mean.

    Part of a larger tensor may grow where it is, or be transposed, conjugated, taken for another
    dtype or sharded in another way. Returns None for anything else.
    """
    if not isinstance(leaf, torch.Tensor):
        return None
    try:
        # No function of ours is called for most tensors: this runs often.
        local: Any = local_part(leaf) if isinstance(leaf, DTensor) else leaf
        at = local.data_ptr() or _places_within(local)
        placements = leaf.placements if isinstance(leaf, DTensor) else None
        means = local.dtype, local.is_conj(), local.is_neg(), placements
        return at, leaf.shape, leaf.stride(), means
    except (RuntimeError, ValueError):  # The tensor is pickled, or has no shape yet.
        return None


def _places_within(tensor: torch.Tensor) -> Any:
    """Return where the inner tensors are of one that has no memory of its own."""
    return tuple(map(place, inner_tensors(tensor).values()))


def structure_of(path: Path, value: Any, flat: Mapping[Path, Any]) -> Any:
    """Return the containers of a state, with the names of what they hold in its place.

    DCP's names alone do not tell whether a key was "3" or 3, and they lose what is empty, and what
    a tensor is besides its elements. `flat` has the leaves.
    """
    return _structure(path, value, flat, {})


def _structure(path: Path, value: Any, flat: Mapping[Path, Any], first: dict[Any, str]) -> Any:
    if path in flat:
        return _named_leaf(".".join(map(str, path)), value, first)
    if isinstance(value, list):
        held = [_structure((*path, n), entry, flat, first) for n, entry in enumerate(value)]
        if type(value) is list:
            return held
        alike = copy.copy(value)
        alike[:] = held
        return alike
    if not isinstance(value, MutableMapping):
        raise UsageError(
            f"{shown(path)} is a {type(value).__name__} with tensors in it, which could not be "
            "filled again: keep a dict"
        )
    kept = copy.copy(value)
    if len(set(map(str, value))) < len(value):
        raise UsageError(f"{shown(path)} has two keys that look the same: rename one")
    for key, entry in value.items():
        kept[key] = _structure((*path, str(key)), entry, flat, first)
    return kept


def _named_leaf(fqn: str, leaf: Any, first: dict[Any, str]) -> str | NamedLeaf:
    """Return a leaf's name, with what else makes it what it is, where there is something.

    `first` has the names of tensors by their places.
    """
    if not isinstance(leaf, torch.Tensor) or is_value(leaf):
        return fqn
    source = first.setdefault(place(leaf) if leaf.numel() else id(leaf), fqn)
    parameter, trains = isinstance(leaf, torch.nn.Parameter), leaf.requires_grad
    kind = None if type(leaf) in _KNOWN else type(leaf)
    if source == fqn and not (parameter or trains or kind):
        return fqn
    return fqn, source, parameter, trains, kind


def dressed(tensor: torch.Tensor, parameter: bool, trains: bool, kind: type | None) -> torch.Tensor:
    """Return a tensor with this type and flag, in the same memory: the same one if it has them."""
    if kind is not None and type(tensor) is not kind:
        tensor = tensor.detach().as_subclass(kind)
    elif kind is None and type(tensor) not in _KNOWN:
        tensor = tensor.detach().as_subclass(torch.Tensor)
    if parameter and not isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.detach(), trains)
    if not parameter and isinstance(tensor, torch.nn.Parameter):
        tensor = tensor.detach()
    if tensor.requires_grad != trains:
        tensor = tensor if tensor.is_leaf else tensor.detach()
        tensor.requires_grad_(trains)
    return tensor


def filled(structure: Any, get: Callable[[str], Any], *, exact: bool = False) -> Any:
    """Fill a structure with what `get` returns for each of its names.

    `exact` says that a name alone stands for a tensor that is neither a parameter nor trained.
    Earlier versions did not tell that.
    """
    known: dict[str, Any] = {}

    def once(name: str) -> Any:
        if name not in known:
            known[name] = get(name)
        return known[name]

    def leaf(told: Any) -> Any:
        if isinstance(told, str):
            plain = exact and isinstance(found := once(told), torch.Tensor) and not is_value(found)
            return dressed(found, False, False, None) if plain else once(told)
        fqn, source, *kind = told
        if source != fqn:
            get(fqn)  # what the script has under this name is filled as well
        return dressed(once(source), *kind)

    def fill(told: Any) -> Any:
        if isinstance(told, str | tuple):
            return leaf(told)
        if isinstance(told, list):
            told[:] = map(fill, told)
            return told
        for key, entry in told.items():
            told[key] = fill(entry)
        return told

    return fill(structure)


def _layout(value: Any) -> tuple[Any, ...]:
    """Return what a container, or an array of numpy's, is besides its content."""
    if type(value).__name__ != "ndarray":
        return type(value), getattr(value, "maxlen", None)
    return value.dtype, value.shape, value.strides, value.flags.writeable


def copied_into(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return the old tensor with the content of the new one where it fits, else the new one."""
    same = old.shape == new.shape and old.dtype == new.dtype
    return old.copy_(new) if same else new.to(old.device)


def _in_place(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return the old tensor with the content of the new one, or the new one."""
    with suppress(RuntimeError, NotImplementedError):  # A new tensor takes its place then.
        if old.layout is torch.sparse_coo and old.dtype is new.dtype and old.layout is new.layout:
            return old.copy_(new)
        return old if refilled(old, new) else new
    return new


def poured(
    old: Any,
    new: Any,
    *,
    exact: bool = False,
    leaf: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _in_place,
) -> Any:
    """Return `new` in the containers and tensors of `old`, which the script may hold.

    `exact`: only in containers of the same type. `leaf` returns what takes a tensor's place.
    """
    pour = functools.partial(poured, exact=exact, leaf=leaf)
    if exact and isinstance(new, MutableMapping | list | deque) and type(old) is not type(new):
        return new
    if isinstance(old, MutableMapping) and isinstance(new, Mapping):
        content = {key: pour(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(content)
        return old
    same = _layout(old) == _layout(new)
    if (isinstance(old, list) and isinstance(new, list)) or (same and isinstance(old, deque)):
        parts = [pour(*pair) for pair in zip_longest([*old][: len(new)], new)]
        old.clear()
        old.extend(parts)
        return old
    if same and isinstance(old, set):
        old.clear()
        old.update(new)
        return old
    if same and type(old).__name__ == "ndarray" and old.flags.writeable:
        old[...] = new
        return old
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old is not new:
        return leaf(old, new)
    return new


def named(path: Path, paths: dict[str, Path]) -> str:
    """Return the name that DCP gives to a path, and note it in `paths`.

    Raises `UsageError` where another entry has this name, or it cannot be written as text.
    """
    fqn = ".".join(map(str, path))
    if fqn in paths:
        _refuse_name(fqn, paths[fqn], path)
    paths[fqn] = path
    if not fqn.isascii():
        try:
            fqn.encode()
        except UnicodeEncodeError:
            told = shown(path).encode(errors="backslashreplace").decode()
            raise UsageError(f"{told}: this name cannot be written as UTF-8") from None
    return fqn


def refuse_names_of_two_paths(named_paths: Iterable[tuple[str, Path]]) -> None:
    """Raise `UsageError` where two paths, perhaps of different ranks, have the same name.

    The paths are those of all ranks, so it is raised on all of them.
    """
    known: dict[str, Path] = {}
    for fqn, path in named_paths:
        if known.setdefault(fqn, path) != path:
            _refuse_name(fqn, known[fqn], path)


def _refuse_name(fqn: str, one: Path, other: Path) -> None:
    raise UsageError(
        f"{shown(one)} and {shown(other)} would both be saved as {fqn}: rename one of them"
    )
