"""Prepares modules for what was saved of them.

Lazy modules get their shape then, and some tensors cannot be filled in place.
"""

from collections.abc import Iterator, Mapping

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from spotelastic.errors import UsageError
from spotelastic.torch_names import WRAPPERS
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
