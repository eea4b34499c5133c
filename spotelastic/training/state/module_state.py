"""Gets and sets a module's state by torch's names, including entries that are no attributes.

torch.distributed.checkpoint looks for each entry in the module. It would neither find nor restore
what a module adds when it saves itself, as bitsandbytes's layers add scales.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict as of_torch

from spotelastic.errors import UsageError
from spotelastic.torch_names import WRAPPERS
from spotelastic.training.state.compatibility import without_compiler
from spotelastic.training.state.module_loading import submodules, wrapped_as

_EMPTY = of_torch.StateDictOptions(strict=False)
"""Allows a module without any parameters or buffers, such as a loss function."""
_CHECKPOINTED = f"{WRAPPERS['CheckpointWrapper']}."


def get_model_state_dict(module: torch.nn.Module) -> dict[str, Any]:
    """Return the module's state by DCP's names."""
    try:
        state = of_torch.get_model_state_dict(module, options=_EMPTY)
    except AttributeError:
        state = {name_in_dcp(module, key): value for key, value in module.state_dict().items()}
    return {without_compiler(key): value for key, value in state.items()}


def parameters_by_name(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters by DCP's names."""
    return {
        without_compiler(name_in_dcp(module, key)): each for key, each in module.named_parameters()
    }


def get_optimizer_state_dict(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return the optimizer's state by DCP's names of the module's parameters."""
    found: dict[str, Any] = dict(of_torch.get_optimizer_state_dict(module, optimizer))
    found["state"] = {without_compiler(key): own for key, own in found["state"].items()}
    for group in found["param_groups"]:
        group["params"] = [without_compiler(key) for key in group["params"]]
    return found


def name_in_dcp(module: torch.nn.Module, key: str) -> str:
    """Return a name without wrappers, some of which leave themselves out of it already."""
    part: Any = module
    names = []
    for name in key.replace(_CHECKPOINTED, "").split("."):
        if name != wrapped_as(part):
            names.append(name)
        part = getattr(part, name, None)
    return ".".join(names)


def set_model_state_dict(name: str, module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Load some entries into a module, called `name` in the state.

    Raises `UsageError` where it does not accept them.
    """
    options = of_torch.StateDictOptions(strict=False)
    try:
        taken = of_torch.set_model_state_dict(module, dict(state), options=options)
    except RuntimeError as error:
        told = str(error).strip().replace("\n", " ")
        raise UsageError(f"{name} does not load what was saved of it: {told}") from error
    refused = [f".{each}" for each in taken.unexpected_keys]
    left = {k: v for k, v in state.items() if any(each.endswith(f".{k}") for each in refused)}
    for prefix, part in reversed([*submodules(module)]):  # The innermost parts come first.
        own = {key[len(prefix) :]: left.pop(key) for key in [*left] if key.startswith(prefix)}
        if own:
            _give(f"{name}.{prefix}", part, own)


def _give(begin: str, part: torch.nn.Module, own: Mapping[str, Any]) -> None:
    """Load entries together with everything else that the part has, as its own code may need.

    What that code does not accept is put into the tensors that its state_dict() returns.
    """
    refused = part.load_state_dict({**part.state_dict(), **own}, strict=False).unexpected_keys
    now = part.state_dict()
    for key in refused:
        if key in own and _is_alike(now.get(key), own[key]):
            now[key].copy_(own[key])
    now = part.state_dict()
    for key in refused:
        if key in own and not _is_same(now.get(key), own[key]):
            raise UsageError(
                f"{begin}{key} cannot be restored: {type(part).__name__} has it in its "
                "state_dict(), but its load_state_dict() does not take it: build the module so "
                "that it has the same value"
            )


def _is_alike(left: Any, right: Any) -> bool:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    return left.shape == right.shape and left.dtype == right.dtype


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(right, torch.Tensor):
        return _is_alike(left, right) and torch.equal(left.to(right.device), right)
    return type(left) is type(right) and bool(left == right)
