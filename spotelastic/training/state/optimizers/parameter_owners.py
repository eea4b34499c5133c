"""Finds the module of the state that gives names to an optimizer's parameters.

An optimizer without one is saved by the numbers of its parameters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from spotelastic.errors import UsageError
from spotelastic.torch_names import STATE_HOOKS, WRAPPERS
from spotelastic.training.state.derived import place
from spotelastic.training.state.per_rank import PerRank

_WRAPPERS = frozenset(("module", *WRAPPERS.values()))
"""Parts of names that wrappers add."""


class Together(torch.nn.Module):
    """Several modules of the state as one, so that each of their parameters has one name."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        # torch splits names at dots.
        super().__init__()
        for entry, module in modules.items():
            name = entry.replace(".", "_")  # torch's names are split there
            while hasattr(self, name) or not name:
                name += "_"
            self._modules[name] = module


def owner(values: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
    """Return the module with all of an optimizer's parameters, or else all modules with some.

    None where a parameter is in no module of the state, or where the optimizer keeps state that
    does not belong to parameters. It is then saved as its own `state_dict()` has it, by numbers.
    """
    if has_a_form_of_its_own(optimizer):
        return None
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    having = {}
    for name, value in values.items():
        if isinstance(value, torch.nn.Module):
            own = set(map(id, value.parameters()))
            if parameters <= own:
                return value
            if parameters & own:
                having[name] = value
    together = Together(having)
    return together if parameters <= set(map(id, together.parameters())) else None


def refuse_unsaved(values: Mapping[str, Any], saved: Sequence[torch.Tensor]) -> None:
    """Raise `UsageError` for an optimizer with a parameter that no entry of the state has.

    `saved` are the tensors of the state. An object of the script's own may save in its own way.
    """
    modules = [value for value in values.values() if isinstance(value, torch.nn.Module)]
    known = {id(parameter) for module in modules for parameter in module.parameters()}
    for name, value in values.items():
        if not isinstance(value, torch.optim.Optimizer):
            continue
        for parameter in (p for group in value.param_groups for p in group["params"]):
            if id(parameter) in known or not parameter.requires_grad or not parameter.numel():
                continue
            if any(map(_saves_in_its_own_way, values.values())):
                return
            if place(parameter) is not None and _memory(parameter) not in map(_memory, saved):
                raise UsageError(
                    f"{name} trains a parameter of shape {[*parameter.shape]} that no entry of the "
                    "state has, so that it would not be saved: put its module, or the tensor "
                    "itself, into the state"
                )


def _saves_in_its_own_way(value: Any) -> bool:
    ours = type(value).__module__.startswith(("torch.", "spotelastic.training.data"))
    known = isinstance(value, torch.nn.Module | torch.optim.Optimizer) or ours
    return isinstance(value, PerRank) or (hasattr(value, "state_dict") and not known)


def _memory(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()


def names_in_groups(
    values: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> list[list[str]] | None:
    """Return the names of the parameters in each group of an optimizer that is saved by numbers.

    They are looked for in all modules of the state. None where one is in none of them.
    """
    names = {
        id(parameter): f"{name}.{_without_wrappers(key)}"
        for name, module in values.items()
        if isinstance(module, torch.nn.Module)
        for key, parameter in module.named_parameters()
    }
    groups = [group["params"] for group in optimizer.param_groups]
    if not all(id(parameter) in names for group in groups for parameter in group):
        return None
    return [[names[id(parameter)] for parameter in group] for group in groups]


def _without_wrappers(key: str) -> str:
    """Return a name without wrappers.

    Compiling and activation checkpointing may change between starts.
    """
    return ".".join(part for part in key.split(".") if part not in _WRAPPERS)


# LBFGS has one state for all parameters together.
def has_a_form_of_its_own(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer's own state_dict() has to be saved, and given back to it.

    That is so where its state cannot be told from `state` and the groups alone, by parameter names.
    """
    if isinstance(optimizer, torch.optim.LBFGS):  # one state for all parameters together
        return True
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        return True
    hooks = any(getattr(optimizer, name, ()) for name in STATE_HOOKS)
    if hooks or "state_dict" in vars(optimizer):
        return True
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return not all(
        id(key) in parameters and isinstance(own, Mapping) and _keys_come_back(own)
        for key, own in optimizer.state.items()
    )


def _keys_come_back(value: Any) -> bool:
    """Return whether keys survive being part of names: digits are read back as a number."""
    if isinstance(value, list):
        return all(map(_keys_come_back, value))
    if not isinstance(value, Mapping):
        return True
    return all(
        (key_of(key) == key if type(key) is str else type(key) is int and key >= 0)
        and (not isinstance(held, Mapping | list) or _keys_come_back(held))
        for key, held in value.items()
    )


def key_of(text: str) -> str | int:
    """Return a key of a dictionary in an optimizer's state; digits are taken for a number."""
    return int(text) if text.isdecimal() else text
