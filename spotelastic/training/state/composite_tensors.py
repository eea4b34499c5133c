"""Saves and restores tensors that a class builds from others, such as torchao's quantized ones.

Their inner tensors are saved like any other, without being pickled. A value under the tensor's name
tells how to build it again: its class, and what `__tensor_flatten__` returns besides tensors.
"""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from spotelastic_checkpoints.format import encoding

from spotelastic.training.state.chunks import dtype_name
from spotelastic.training.state.tensors import has_nothing, is_value, is_wrapper, pour

_CLASS = "made by"


def is_made_of_others(value: Any) -> bool:
    """Return whether it is built from other tensors in a way that can be repeated.

    A nested tensor is built from others as well, but cannot be built again from what it returns.
    """
    return (
        isinstance(value, torch.Tensor)
        and is_value(value)
        and not value.is_nested
        and is_wrapper(value)
    )


def inner_tensors(value: Any) -> dict[str, torch.Tensor]:
    """Return the inner tensors by name; none if the tensor has to be pickled."""
    if not is_made_of_others(value):
        return {}
    found = dict(_flattened(value))
    return found if all(map(_is_ordinary, found.values())) else {}


def _flattened(value: Any, within: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name in value.__tensor_flatten__()[0]:
        inner = getattr(value, name)
        if is_made_of_others(inner):
            yield from _flattened(inner, f"{within}{name}.")
        else:
            yield within + name, inner.detach()


def _is_ordinary(tensor: torch.Tensor) -> bool:
    known = dtype_name(tensor) in encoding.ITEM_SIZES
    return known and not is_value(tensor) and not has_nothing(tensor)


def inner_name(name: str) -> str:
    """Return the last part of the name that an inner tensor is saved under."""
    return f"[{name}]"


def description(value: Any) -> dict[str, Any]:
    """Return what is saved beside the inner tensors."""
    names, context = value.__tensor_flatten__()
    inner = {name: getattr(value, name) for name in names}
    return {
        _CLASS: type(value),
        "context": context,
        "of": {
            name: description(each) if is_made_of_others(each) else each.requires_grad
            for name, each in inner.items()
        },
        "size": [*value.size()],
        "stride": [*value.stride()],
        "parameter": isinstance(value, torch.nn.Parameter),
        "requires_grad": value.requires_grad,
    }


def is_description(value: Any) -> bool:
    """Return whether a saved value describes such a tensor."""
    return type(value) is dict and _CLASS in value


def made(described: Any, get: Callable[[str], torch.Tensor], within: str = "") -> Any:
    """Build the tensor again. `get` returns an inner tensor by its name."""
    inner = {
        name: made(told, get, f"{within}{name}.")
        if is_description(told)
        else get(within + name).requires_grad_(told)
        for name, told in described["of"].items()
    }
    size, stride = torch.Size(described["size"]), tuple(described["stride"])
    value = described[_CLASS].__tensor_unflatten__(inner, described["context"], size, stride)
    if described["parameter"]:
        return torch.nn.Parameter(value, described["requires_grad"])
    return value.requires_grad_() if described["requires_grad"] else value


@torch.no_grad()
def refilled(old: Any, new: Any) -> bool:
    """Copy the inner tensors of `new` into those of `old`.

    Returns False where they do not correspond.
    """
    targets, sources = inner_tensors(old), inner_tensors(new)
    if not targets or targets.keys() != sources.keys() or not _is_alike(old, new):
        return False
    for name, target in targets.items():
        if (target.dtype, target.shape) != (sources[name].dtype, sources[name].shape):
            return False
    pour([*targets.values()], [sources[name] for name in targets])
    return True


def _is_alike(old: Any, new: Any) -> bool:
    told = [description(value) for value in (old, new)]
    for each in told:
        del each["parameter"], each["requires_grad"]
    try:
        return bool(told[0] == told[1]) or pickle.dumps(told[0]) == pickle.dumps(told[1])
    except Exception:  # Comparing may run any class's code.
        return False
