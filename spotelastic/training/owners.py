"""Which module of the state gives an optimizer's parameters their names."""

from collections.abc import Mapping
from typing import Any

import torch


class Together(torch.nn.Module):
    """Several modules of the state, so that each of their parameters has one name."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        for entry, module in modules.items():
            name = entry.replace(".", "_")  # torch's names are split there
            while hasattr(self, name) or not name:
                name += "_"
            self._modules[name] = module


def owner(values: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
    """The module that has all of an optimizer's parameters, or else all that have some.

    None where a parameter is in no module of the state, or where what the optimizer keeps is not
    kept by parameters. It is then saved as its own `state_dict()` has it, by numbers.
    """
    if isinstance(optimizer, torch.optim.LBFGS):  # one state for all parameters together
        return None
    if _has_a_form_of_its_own(optimizer):
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


def _has_a_form_of_its_own(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its state_dict() is not the usual one, as where it wraps another optimizer."""
    if type(optimizer).state_dict is torch.optim.Optimizer.state_dict:
        return False
    return set(optimizer.state_dict()) != {"state", "param_groups"}
