"""Lets modules load saved state by their own code, where its shape may differ from what they have.

Observers of quantization are resized when they are loaded, lazy modules get their shape then, and
some tensors cannot be filled in place.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from spotelastic.errors import UsageError
from spotelastic.torch_names import WRAPPERS, loads_by_itself
from spotelastic.training.state.compatibility import Kind
from spotelastic.training.state.composite_tensors import refilled


def wrapped_as(module: object) -> str | None:
    """Return the attribute of a wrapper that holds the module within; None: it is no wrapper."""
    if isinstance(module, DistributedDataParallel):
        return "module"
    if not isinstance(module, torch.nn.Module):
        return None
    found = (WRAPPERS.get(kind.__name__, "") for kind in type(module).__mro__)
    return next((name for name in found if name in module._modules), None)


def submodules(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield all modules with the prefix of their names in DCP, which leaves wrappers out."""
    within = wrapped_as(module)
    if within is not None:
        yield from submodules(getattr(module, within), prefix)
        return
    yield prefix, module
    for name, child in module.named_children():
        yield from submodules(child, f"{prefix}{name}.")


def materialise(name: str, module: torch.nn.Module, saved: Mapping[str, Kind]) -> None:
    """Give parameters and buffers of lazy modules the shape that was saved."""
    for prefix, part in submodules(module):
        for held in part._parameters, part._buffers:
            for key, tensor in held.items():
                kind = saved.get(f"{name}.{prefix}{key}")
                if tensor is not None and is_lazy(tensor) and kind is not None and kind.dtype:
                    with torch.no_grad():
                        tensor.materialize(kind.shape)


def takes(
    name: str, module: torch.nn.Module, here: Mapping[str, Kind], there: Mapping[str, Kind]
) -> dict[str, Mapping[str, str]]:
    """Return the parts of a module that load what was saved, though it differs.

    Maps the prefix of each part to the saved names by their names within it. This is tried on
    copies.
    """
    differs = {fqn for fqn in here.keys() | there.keys() if here.get(fqn) != there.get(fqn)}
    differs = {fqn for fqn in differs if fqn.startswith(f"{name}.")}
    found: dict[str, Mapping[str, str]] = {}
    if not differs:
        return found
    for prefix, part in reversed([*submodules(module)]):  # The innermost parts come first.
        begin = f"{name}.{prefix}"
        own = {fqn for fqn in differs if fqn.startswith(begin)}
        if own and loads_by_itself(part):
            names = {fqn[len(begin) :]: fqn for fqn in there if fqn.startswith(begin)}
            if _fits(part, {key: there[fqn] for key, fqn in names.items()}):
                found[begin] = names
                differs -= own
    return found


def _fits(module: torch.nn.Module, saved: Mapping[str, Kind]) -> bool:
    if not all(kind.dtype for kind in saved.values()):
        return False
    try:
        trial = copy.deepcopy(module)
        state = {
            key: torch.zeros(kind.shape, dtype=getattr(torch, kind.dtype))
            for key, kind in saved.items()
        }
        _load(trial, state)
        return all(torch.equal(tensor, state[key]) for key, tensor in trial.state_dict().items())
    except Exception:  # Foreign code may raise anything: the state does not fit then.
        return False


def load(module: torch.nn.Module, begin: str, name: str, state: Mapping[str, Any]) -> None:
    """Load saved state into the part with this prefix, which `takes` returned."""
    for prefix, part in submodules(module):
        if f"{name}.{prefix}" == begin:
            _load(part, state)
            return


def _load(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    known = module.state_dict()
    known.clear()  # Its versions stay, which hooks look at.
    known.update(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.load_state_dict(known)


def replaced(name: str, module: torch.nn.Module, key: str, value: torch.Tensor) -> bool:
    """Fill or replace a buffer or parameter that is no plain memory.

    Returns whether `key` is one.
    """
    found = False
    for prefix, part in submodules(module):
        inner = key.removeprefix(prefix)
        for held in part._buffers, part._parameters:
            old = held.get(inner) if key == f"{prefix}{inner}" else None
            if old is None:
                continue
            found = True
            if refilled(old, value):
                continue
            try:
                with torch.no_grad():
                    old.copy_(value.to(old.device))
            except (RuntimeError, NotImplementedError) as error:
                if held is part._parameters:
                    raise UsageError(f"{name}.{key} cannot be filled: {error}") from error
                part._buffers[inner] = value.to(old.device)
    return found
