"""Creates the state of optimizers that a checkpoint is loaded into, as the checkpoint describes it.

An optimizer creates its state in its steps, each class in its own way: some at the second step,
some only with a closure or with sparse gradients. So no step is made to find out. Each parameter
gets the entries that were saved for it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from spotelastic.errors import UsageError
from spotelastic.torch_names import STEP_HOOKS
from spotelastic.training.state.compatibility import Kind, Path
from spotelastic.training.state.composite_tensors import inner_tensors
from spotelastic.training.state.derived import structure_of
from spotelastic.training.state.optimizers.parameter_owners import key_of

_ON_ITS_DEVICE = ("capturable", "fused")
"""Options with which torch keeps the number of steps on the parameter's device."""
_OF_SCHEDULERS = frozenset(
    (
        *("params", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr"),
        *("base_momentum", "max_momentum"),
    )
)
"""Options of groups that schedulers add."""

Entries = Mapping[Path, Kind]
"""What was saved of one parameter: for each tensor and value, the rest of its path."""


class Absent:
    """Stands for a value that has not been read yet."""

    def __init__(self, device: torch.device) -> None:
        self.device = device


class _Unknown(Exception):
    """The checkpoint alone does not tell what state the optimizer has, or how it is sharded."""


def make_state(
    name: str,
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    names: Mapping[torch.Tensor, str],
    saved: Mapping[Path, Kind],
    *,
    same_class: bool,
) -> None:
    """Give the parameters the entries that were `saved` of this optimizer, to be filled later.

    What is there and fits is kept. What was not saved is removed: a parameter that had no gradients
    until then has no state. Raises `UsageError` for a checkpoint of another kind of optimizer.
    """
    others = not same_class and _check_class(name, optimizer, saved)
    entries: dict[str, dict[Path, Kind]] = {}
    for path, kind in saved.items():
        if len(path) > 3 and path[1] == "state":
            entries.setdefault(str(path[2]), {})[path[3:]] = kind
    try:
        if others:  # It may be another class, so what this one creates itself is compared.
            raise _Unknown
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _make(optimizer, group, parameter, entries.get(names[parameter], {}))
    except _Unknown:
        _make_by_a_step(name, optimizer, model)
        for parameter in [*optimizer.state]:
            if names.get(parameter) not in entries:
                del optimizer.state[parameter]
            elif not others:
                _add(optimizer.state[parameter], parameter, entries[names[parameter]])


def _check_class(name: str, optimizer: torch.optim.Optimizer, saved: Mapping[Path, Kind]) -> bool:
    """Return whether the options differ.

    Versions of one class add some or drop some. Where each side has some that the other lacks, they
    are two classes, and this raises `UsageError`.
    """
    there = {str(path[3]) for path in saved if len(path) > 3 and path[1] == "param_groups"}
    known = {str(key) for group in optimizer.param_groups for key in group}
    only_there = there - known - _OF_SCHEDULERS
    only_here = set(optimizer.defaults) - there
    if there and only_there and only_here:
        raise UsageError(
            f"{name} was saved of another kind of optimizer, with the options "
            f"{', '.join(sorted(only_there))}: {type(optimizer).__name__} has none of these, but "
            f"{', '.join(sorted(only_here))}"
        )
    return bool(there) and bool(only_there or only_here)


@contextmanager
def unchanged_if_refused(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """Restore the optimizers' state as it was where the block raises `UsageError`."""
    known = [
        (
            each,
            {key: {**own} if isinstance(own, Mapping) else own for key, own in each.state.items()},
        )
        for each in optimizers
    ]
    try:
        yield
    except UsageError:
        for optimizer, state in known:
            optimizer.state.clear()
            optimizer.state.update(state)
        raise


def _make(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    entries: Entries,
) -> None:
    if not entries:
        optimizer.state.pop(parameter, None)
        return
    own = optimizer.state[parameter]
    keys = {str(key): key for key in own}
    saved = {str(path[0]) for path in entries}
    for text, key in keys.items():
        if text not in saved and flat_entries(own[key]):
            del own[key]
    # The number of steps comes first, as in torch's own optimizers.
    for text in sorted(saved, key=lambda text: (text != "step", text)):
        wanted = {path[1:]: kind for path, kind in entries.items() if str(path[0]) == text}
        if text in keys and _fits(flat_entries(own[keys[text]]), wanted):
            continue
        own[keys.get(text, key_of(text))] = _built(
            wanted, lambda kind, text=text: _empty(text, kind, parameter, group)
        )


def _add(own: dict[Any, Any], parameter: torch.Tensor, entries: Entries) -> None:
    """Add the entries that no step makes: a script's own. They are not sharded."""
    for text in {str(path[0]) for path in entries} - {*map(str, own)}:
        wanted = {path[1:]: kind for path, kind in entries.items() if str(path[0]) == text}
        own[key_of(text)] = _built(wanted, lambda kind: _plain(kind, parameter))


def _plain(kind: Kind, parameter: torch.Tensor) -> Any:
    if not kind.dtype:
        return Absent(parameter.device)
    return torch.empty(kind.shape, dtype=getattr(torch, kind.dtype), device=parameter.device)


def _fits(held: Mapping[Path, Any], wanted: Entries) -> bool:
    if held.keys() != wanted.keys():
        return False
    return all(_fits_one(held[path], kind) for path, kind in wanted.items())


def _fits_one(leaf: Any, kind: Kind) -> bool:
    """Return whether an entry fits. A number may have been a tensor, and a tensor a number."""
    if isinstance(leaf, Absent):
        return False
    if not isinstance(leaf, torch.Tensor):
        return not kind.dtype or kind.shape in ((), (1,))
    if not kind.dtype:
        return leaf.numel() == 1 or type(leaf) is not torch.Tensor
    return leaf.shape == kind.shape and leaf.dtype == getattr(torch, kind.dtype)


def flat_entries(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return entries by path as torch.distributed.checkpoint gives them, with strings as keys."""
    if isinstance(value, Mapping):
        parts = [flat_entries(held, (*path, str(key))) for key, held in value.items()]
    elif isinstance(value, list) and any(map(_has_tensors, value)):
        parts = [flat_entries(held, (*path, number)) for number, held in enumerate(value)]
    else:
        return {path: value}
    return {path: leaf for part in parts for path, leaf in part.items()}


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    if isinstance(value, list):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor | Absent)


def _built(entries: Entries, empty: Any) -> Any:
    """Build the containers that these paths lead through, with `empty` entries in them."""
    if () in entries:
        return empty(entries[()])
    within: dict[str | int, dict[Path, Kind]] = {}
    for path, kind in entries.items():
        within.setdefault(path[0], {})[path[1:]] = kind
    if all(isinstance(key, int) for key in within):
        return [_built(within[key], empty) for key in sorted(within, key=int)]
    return {key_of(str(key)): _built(part, empty) for key, part in within.items()}


def containers_of(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Mapping[Any, Any]]
) -> dict[Path, Callable[[], Any]]:
    """Return functions that return the containers in an optimizer's options and `state`, by path.

    Each returns its path and structure. Names of what they hold would lose what is empty. The
    structures have names relative to them.
    """
    found: dict[Path, Any] = {}
    groups = enumerate(optimizer.param_groups)
    held: tuple[tuple[Path, Mapping[Any, Any]], ...] = (
        *((("param_groups", number), group) for number, group in groups),
        *((("state", fqn), own) for fqn, own in state.items()),
    )
    for path, own in held:
        if not own:
            found[path] = own
        for key, entry in own.items():
            if (
                key != "params"
                and isinstance(entry, Mapping | list)
                and () not in flat_entries(entry)
            ):
                found[*path, key] = entry
    return {path: functools.partial(_told, path, entry) for path, entry in found.items()}


def _told(path: Path, entry: Any) -> tuple[Path, Any]:
    return path, structure_of((), entry, flat_entries(entry))


def _empty(key: str, kind: Kind, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    if not kind.dtype:
        return Absent(parameter.device)
    dtype = getattr(torch, kind.dtype)
    if key == "step" and kind.shape == ():
        there = any(group.get(option) for option in _ON_ITS_DEVICE)
        return torch.empty((), dtype=dtype, device=parameter.device if there else "cpu")
    like = parameter.detach()
    if isinstance(like, DTensor) and kind.shape and kind.shape != tuple(like.shape):
        raise _Unknown
    if kind.shape == tuple(like.shape) and isinstance(like, DTensor):
        return torch.empty_like(like, dtype=dtype)
    if kind.shape == tuple(like.shape) and type(like) is torch.Tensor:
        return torch.empty_like(like, dtype=dtype)
    return torch.empty(kind.shape, dtype=dtype, device=parameter.device)


def sharded_state(
    name: str, optimizer: torch.optim.Optimizer, saved: Mapping[Path, Kind]
) -> dict[str, DTensor]:
    """Return empty sharded tensors, by name, for state that was saved by the numbers of parameters.

    load_state_dict() keeps what it is given, so it has to be sharded before.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sharded: dict[str, DTensor] = {}
    for path, kind in saved.items():
        if path[:2] != (name, "state") or len(path) < 4 or not str(path[2]).isdecimal():
            continue
        number = int(path[2])
        like = parameters[number].detach() if number < len(parameters) else None
        if isinstance(like, DTensor) and kind.dtype and kind.shape == tuple(like.shape):
            dtype = getattr(torch, kind.dtype)
            empty = torch.empty_like(like, dtype=dtype)
            assert isinstance(empty, DTensor)
            sharded[".".join(map(str, path))] = empty
    return sharded


def changed_by_steps(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield tensors that only this optimizer changes, and only in steps that call hooks."""
    if not getattr(type(optimizer).step, "hooked", False):
        return
    if any(group.get("capturable") for group in optimizer.param_groups):
        return  # A CUDA graph that is replayed calls no hook.
    for group in optimizer.param_groups:
        yield from chain.from_iterable(map(_in_memory, group["params"]))
    # A state may be no dict, under a key that is no parameter.
    for own in optimizer.state.values():
        for value in own.values() if isinstance(own, Mapping) else (own,):
            if torch.is_tensor(value):
                yield from _in_memory(value)


def _in_memory(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    return inner_tensors(tensor).values() or (tensor,)


def refuse_others(name: str, value: object) -> None:
    """Raise `UsageError` for modules, optimizers and classes whose state cannot be saved."""
    if isinstance(value, type):
        raise UsageError(f"state[{name!r}] is the class {value.__name__}: give an object of it")
    if isinstance(value, torch.nn.Module):
        for part in value.modules():
            if isinstance(part, FullyShardedDataParallel):
                raise UsageError(
                    f"state[{name!r}]: FullyShardedDataParallel (FSDP1) cannot be saved: shard the "
                    "model with torch.distributed.fsdp.fully_shard (FSDP2)"
                )
    if not isinstance(value, torch.optim.Optimizer):
        return
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(value).__mro__):
        raise UsageError(
            f"state[{name!r}]: ZeroRedundancyOptimizer keeps the state of each parameter on one "
            "rank only and cannot be saved: shard the model with "
            "torch.distributed.fsdp.fully_shard (FSDP2), or use the plain optimizer"
        )


def _make_by_a_step(name: str, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Create state by a step without gradients, as DCP does.

    For state that is sharded in a way of its own.
    """
    try:
        with _trial_step(optimizer):
            get_optimizer_state_dict(model, optimizer)
    except Exception as error:
        raise UsageError(
            f"{name}: {type(optimizer).__name__} has other options than were saved, or state "
            "that is not sharded as its parameters are; a step without gradients fails with "
            f"{type(error).__name__}: {error}"
        ) from error


@contextmanager
def _trial_step(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Prepare a step of zero gradients, in which torch creates the state of all parameters.

    It includes parameters that are frozen by now. Gradients that exist are kept, and the script's
    hooks do not see the step.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = [(parameter, parameter.grad, parameter.requires_grad) for parameter in parameters]
    hooks = {name: getattr(optimizer, name) for name in STEP_HOOKS if hasattr(optimizer, name)}
    optimizer.state.clear()
    for parameter in parameters:
        parameter.grad = None
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(True)
    vars(optimizer).update({name: type(kept)() for name, kept in hooks.items()})
    try:
        yield
    finally:
        vars(optimizer).update(hooks)
        for parameter, gradient, trains in known:
            parameter.requires_grad_(trains)
            parameter.grad = gradient


@contextmanager
def no_step(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Keep torch from making that step where there is no state yet, since it would count as one.

    torch makes none where there is a gradient.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if optimizer.state or any(parameter.grad is not None for parameter in parameters):
        yield
        return
    smallest = min(parameters, key=torch.Tensor.numel)
    smallest.grad = torch.zeros_like(smallest)
    try:
        yield
    finally:
        smallest.grad = None
