"""Follows what of a state grows, appears or goes while a run trains, and prepares it for a restore.

A script begins with empty buffers, one group of parameters, no best value yet. What a run has made
of these is restored as it was saved. All else has to fit, because it differs only where the script
is another one. So a save names everything that is not as the script began with it. Names alone tell
that: nothing else of a checkpoint can be read before it is known to fit.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_sharded
from torch.nn.parameter import is_lazy

from spotelastic.errors import UsageError
from spotelastic.torch_names import unsaved_buffers
from spotelastic.training.state.chunks import dtype_name
from spotelastic.training.state.compatibility import Kind, Path
from spotelastic.training.state.derived import shown, tensors_in
from spotelastic.training.state.module_loading import submodules
from spotelastic.training.state.module_state import get_model_state_dict
from spotelastic.training.state.optimizers.parameter_groups import regroup
from spotelastic.training.state.state import State
from spotelastic.training.state.tensors import is_value
from spotelastic.training.state.value_entries import ValueEntry, own_entry

TRAINED = "trained"
"""Second part of names of values that tell which parameters of a module are trained since then."""
CHANGED, GROUPS = "changed", "groups"
"""Second parts of names: of entries and tensors that are not as at first, and of such groups."""
_BUFFER, _TRAINED, _FROZEN, _ENTRY = "buffer", "trained", "frozen", "entry"
"""What came or changed: a tensor of a module, or whether there is such an entry."""
_LAZY = Kind("lazy")
"""Stands for a tensor that gets its shape in its module's first run."""

Name = tuple[str, str]
"""An entry of the state, and the full name of a tensor in it, or once more of the entry."""
Undo = list[Callable[[], None]]


class Measured(NamedTuple):
    """What a state consists of at one time, except for what objects save by their own code."""

    entries: Collection[str]
    modules: Collection[Name]
    """Names of modules and of those within them, each with a dot at its end."""
    tensors: Mapping[Name, Kind]
    groups: Mapping[str, Collection[Collection[str]]]
    """Names of the parameters in each optimizer's groups."""
    trained: Collection[Name]
    """Which of the tensors are parameters that get gradients."""
    training: Collection[Name]
    """Which of the modules are in train mode."""


def begin(state: State) -> Measured:
    """Return what the state consisted of when this was first called, which is before it trained."""
    begun: Measured | None = state.begun
    if begun is None:
        _take_back(state)
        begun = state.begun = measured(state)
    return begun


def _take_back(state: State) -> None:
    """Have `fully_shard` take back what a forward has gathered."""
    for value in state.values.values():
        if isinstance(value, torch.nn.Module):
            get_model_state_dict(value)


def measured(state: State) -> Measured:
    """Return what the state consists of now."""
    modules, held = modules_of(state), _tensors(state)
    tensors = {name: _kind_of(tensor) for name, tensor in held.items()}
    groups = {name: state.groups(optimizer) for name, optimizer in state.optimizers()}
    trained = {
        name
        for name, tensor in held.items()
        if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
    }
    training = {name for name, part in modules.items() if part.training}
    return Measured([*state.values], modules, tensors, groups, trained, training)


def modules_of(state: State) -> dict[Name, torch.nn.Module]:
    """Return the modules of a state, and those within them, by name with a dot at its end."""
    return {
        (name, f"{name}.{prefix}"): part
        for name, value in state.values.items()
        if isinstance(value, torch.nn.Module)
        for prefix, part in submodules(value)
    }


def changes(state: State, begun: Measured) -> list[ValueEntry]:
    """Return values whose names say what has changed since the state was as it `begun`.

    Raises `UsageError` for what has come that a restarted script would have no place for.
    """
    now, tensors = measured(state), _tensors(state)
    _refuse_added(state, begun, now)
    entries = []
    for name, fqn in sorted(_changed(begun, now)):
        kind, tensor = "", tensors.get((name, fqn))
        if isinstance(tensor, DTensor) and (name, fqn) not in begun.tensors:
            _refuse(fqn)
        if fqn == name and (name in begun.entries) != (name in now.entries):
            kind = _ENTRY
        elif tensor is not None:
            trained = _TRAINED if tensor.requires_grad else _FROZEN
            kind = trained if isinstance(tensor, torch.nn.Parameter) else _BUFFER
        entries.append(own_entry(lambda: True, CHANGED, name, fqn, kind))
    # Some scripts freeze a model in each step for a while: the value's name stays, then.
    state.retrained |= {name for name in now.entries if _trained(state, begun, name)}
    entries += [
        own_entry(functools.partial(_trained, state, begun, name), TRAINED, name)
        for name in sorted(state.retrained & {*now.entries})
    ]
    for name, groups in now.groups.items():
        if _sorted(groups) != _sorted(begun.groups.get(name, groups)):
            entries += [
                own_entry(lambda: True, GROUPS, name, str(number), *group)
                for number, group in enumerate(groups)
            ]
    return entries


def _trained(state: State, begun: Measured, name: str) -> list[str]:
    """Return the parameters of a module that are frozen or trained, and were not at first."""
    module = state.values[name]
    held = _held(name, module) if isinstance(module, torch.nn.Module) else {}
    return sorted(
        fqn
        for fqn, (_, _, tensor) in held.items()
        if isinstance(tensor, torch.nn.Parameter) and (name, fqn) in begun.tensors
        if tensor.requires_grad != ((name, fqn) in begun.trained)
    )


def set_trained(state: State, name: str, changed: Collection[str]) -> None:
    """Freeze and train the parameters of a module as they were when it was saved."""
    module, begun = state.values[name], begin(state)
    for fqn, (_, _, tensor) in _held(name, module).items():
        if isinstance(tensor, torch.nn.Parameter) and (name, fqn) in begun.tensors:
            tensor.requires_grad_(((name, fqn) in begun.trained) != (fqn in changed))


def _sorted(groups: Collection[Collection[str]]) -> list[list[str]]:
    return sorted(map(sorted, groups))


def _changed(begun: Measured, now: Measured) -> set[Name]:
    names = begun.tensors.keys() | now.tensors.keys()
    found = {name for name in names if begun.tensors.get(name) != now.tensors.get(name)}
    found -= {name for name in found if begun.tensors.get(name) == _LAZY}
    return found | {(name, name) for name in {*begun.entries} ^ {*now.entries}}


def _refuse_added(state: State, begun: Measured, now: Measured) -> None:
    added = [place.removesuffix(".") for _, place in sorted({*now.modules} - {*begun.modules})]
    added += [
        shown((name,))
        for name in now.entries
        if name not in begun.entries and not _is_made_anew(state, state.values[name])
    ]
    if added:
        _refuse(added[0])
    for name, fqn in sorted({*begun.tensors} - {*now.tensors}):
        module, path = state.values.get(name), fqn.removeprefix(f"{name}.")
        if isinstance(module, torch.nn.Module) and _is_made_by_a_hook(module, path):
            raise UsageError(
                f"{fqn} is made of other tensors since checkpoint.restore(), as by pruning, which "
                "a restarted script would not know of: do that before"
            )


def _is_made_by_a_hook(module: torch.nn.Module, path: str) -> bool:
    part, _, key = path.rpartition(".")
    found = dict(submodules(module)).get(f"{part}." if part else "")
    return found is not None and isinstance(getattr(found, key, None), torch.Tensor)


def _refuse(name: str) -> None:
    raise UsageError(
        f"{name} was added after checkpoint.restore(), so that a restarted script would have "
        "nothing to restore it into: add it before"
    )


def _is_made_anew(state: State, value: Any) -> bool:
    return isinstance(value, torch.Tensor) or state.is_value(value)


# -- restoring ------------------------------------------------------------------------------------


@contextmanager
def prepared(
    state: State,
    saved: Mapping[str, Kind],
    own: Collection[Path],
) -> Iterator[None]:
    """Give what has changed while the run trained the size that was `saved`, or a place at all.

    `own` are the paths of values that spotelastic added to the checkpoint. Where the block raises
    `UsageError`, the state is put back.
    """
    undo: Undo = []
    begun = begin(state)
    _take_back(state)
    names = dict.fromkeys(_changed(begun, measured(state)), "")
    names |= {(str(path[2]), str(path[3])): str(path[4]) for path in own if path[1] == CHANGED}
    groups: dict[str, dict[int, tuple[str, ...]]] = {}
    for path in own:
        if path[1] == GROUPS:
            groups.setdefault(str(path[2]), {})[int(path[3])] = tuple(map(str, path[4:]))
    try:
        for name in {name: None for name, _ in names}:
            changed = {fqn: kind for (each, fqn), kind in names.items() if each == name}
            there = (name in begun.entries) != (changed.get(name) == _ENTRY)
            _prepare(state, name, changed, saved, undo, there=there)
        for name, optimizer in state.optimizers():
            if name in groups:
                wanted = [groups[name][number] for number in sorted(groups[name])]
                regroup(optimizer, state.nameable(optimizer), wanted, undo)
        yield
    except UsageError:
        for back in reversed(undo):
            back()
        raise


def _prepare(
    state: State,
    name: str,
    changed: Mapping[str, str],
    saved: Mapping[str, Kind],
    undo: Undo,
    *,
    there: bool,
) -> None:
    value = state.values.get(name)
    if there != (name in state.values):
        _put(state.values, name, None if there else _GONE, undo)
    elif isinstance(value, torch.nn.Module):
        _prepare_module(name, value, changed, saved, undo)
    elif there and (isinstance(value, torch.Tensor) or state.is_value(value)):
        for path, leaf in _leaves(name, value).items():
            kind = saved.get(fqn := ".".join(map(str, path)))
            if fqn in changed and kind != _kind_of(leaf):
                made = _made(kind, leaf) if kind is not None and kind.dtype else None
                holder, key = _holder(state.values, path)
                _set(holder, key, made, holder[key], undo)


def _prepare_module(
    name: str,
    module: torch.nn.Module,
    changed: Mapping[str, str],
    saved: Mapping[str, Kind],
    undo: Undo,
) -> None:
    known = _held(name, module)
    parts = {f"{name}.{prefix}": part for prefix, part in submodules(module)}
    device = next((tensor.device for _, _, tensor in known.values()), None)
    for fqn, what in changed.items():
        kind = saved.get(fqn)
        if fqn in known:
            held, key, tensor = known[fqn]
            if kind is None:
                _put(held, key, None, undo)
            elif kind.dtype and kind != _kind_of(tensor) and not is_lazy(tensor):
                made = _made(kind, tensor)
                if isinstance(tensor, torch.nn.Parameter):
                    _resize(tensor, made, undo)
                else:
                    _put(held, key, made, undo)
        elif kind is not None and kind.dtype and what:
            begin, _, key = fqn.rpartition(".")
            part = parts.get(f"{begin}.")
            if part is not None and getattr(part, key, None) is None:
                made = torch.empty(kind.shape, dtype=getattr(torch, kind.dtype), device=device)
                if what == _BUFFER:
                    _put(part._buffers, key, made, undo)
                else:
                    made = torch.nn.Parameter(made, what == _TRAINED)
                    _put(part._parameters, key, made, undo)


def _made(kind: Kind, like: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor of this kind, on the device of another one, and sharded like it."""
    dtype = getattr(torch, kind.dtype)
    if isinstance(like, DTensor) and len(kind.shape) == like.dim():
        mesh, placements = like.device_mesh, like.placements
        return empty_sharded(kind.shape, dtype=dtype, device_mesh=mesh, placements=placements)
    return torch.empty(kind.shape, dtype=dtype, device=like.device)


def _resize(parameter: torch.nn.Parameter, data: torch.Tensor, undo: Undo) -> None:
    """Give a parameter other data. Its optimizer and hooks keep it."""
    old, gradient = parameter.data, parameter.grad

    def back() -> None:
        parameter.data, parameter.grad = old, gradient

    undo.append(back)
    parameter.grad = None
    parameter.data = data


_GONE = object()


def _put(held: MutableMapping[str, Any], key: str, value: Any, undo: Undo) -> None:
    """Set or remove an entry."""
    _set(held, key, value, held.get(key, _GONE), undo)


def _set(held: Any, key: Any, value: Any, old: Any, undo: Undo) -> None:
    def put(value: Any) -> None:
        if value is _GONE:
            del held[key]
        else:
            held[key] = value

    undo.append(lambda: put(old))
    put(value)


def _holder(container: Any, path: Path) -> tuple[Any, Any]:
    """Return what holds the entry at a path, whose keys are given as text, and its key there."""
    for key in path[:-1]:
        container = container[_key(container, key)]
    return container, _key(container, path[-1])


def _key(container: Any, text: str | int) -> Any:
    return text if isinstance(container, list) else next(k for k in container if str(k) == text)


# -- measuring ------------------------------------------------------------------------------------


def _tensors(state: State) -> dict[Name, torch.Tensor]:
    """Return the tensors of modules, of containers, and that are entries themselves."""
    tensors: dict[Name, torch.Tensor] = {}
    for name, value in state.values.items():
        if isinstance(value, torch.nn.Module):
            tensors |= {(name, fqn): tensor for fqn, (_, _, tensor) in _held(name, value).items()}
        elif isinstance(value, torch.Tensor) or state.is_value(value):
            leaves = _leaves(name, value).items()
            tensors |= {(name, ".".join(map(str, path))): leaf for path, leaf in leaves}
    return tensors


def _held(
    name: str, module: torch.nn.Module
) -> dict[str, tuple[dict[str, Any], str, torch.Tensor]]:
    """Return a module's parameters and buffers that are saved, by name, with what holds them."""
    return {
        f"{name}.{prefix}{key}": (held, key, tensor)
        for prefix, part in submodules(module)
        for unsaved in (unsaved_buffers(part),)
        for held in (part._parameters, part._buffers)
        for key, tensor in held.items()
        if tensor is not None and key not in unsaved
        if is_lazy(tensor) or not is_value(tensor)
    }


def _leaves(name: str, value: Any) -> dict[Path, torch.Tensor]:
    """Return the tensors of a tensor or container that are saved as such."""
    found = {(name,): value} if isinstance(value, torch.Tensor) else tensors_in(name, value)
    return {path: leaf for path, leaf in found.items() if not is_value(leaf)}


def _kind_of(tensor: torch.Tensor) -> Kind:
    return _LAZY if is_lazy(tensor) else Kind(dtype_name(tensor), tuple(tensor.shape))
