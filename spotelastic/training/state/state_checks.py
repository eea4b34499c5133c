"""Makes checks that a module, an optimizer or a tensor of the state is still what it was.

A save copies from the very tensors that training updates. A check finds out, by comparing objects
and addresses, whether they have been replaced since, without asking for a `state_dict()`.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from spotelastic.training.state.derived import Container, place

Check = Callable[[], bool]
"""Returns whether something is still what it was when the check was made."""


def module_check(module: torch.nn.Module) -> Check:
    """Return a check that a module still has the same parameters, buffers and submodules.

    They may be replaced, frozen, or moved to other memory. A view keeps the old memory from being
    reused.
    """
    parts: list[dict[str, Any]] = []
    for each in module.modules():
        parts += each._modules, each._parameters, each._buffers

    def held() -> list[Any]:
        return [each for part in parts if part for each in part.values()]

    def is_current() -> bool:
        now = held()
        return are_same(now, known) and list(map(_place, now)) == places

    known = held()
    places = list(map(_place, known))
    return is_current


def _place(part: Any) -> tuple[object, bool]:
    return place(part), isinstance(part, torch.Tensor) and part.requires_grad


def are_same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether both have the same objects in the same order."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


def optimizer_check(optimizer: torch.optim.Optimizer) -> Check:
    """Return a check that an optimizer still has the same tensors and containers."""

    def held() -> tuple[list[Any], list[Any]]:
        objects: list[Any] = []
        keys: list[Any] = []
        for state in optimizer.state.values():
            if isinstance(state, Mapping | list):
                _note(state, objects, keys)
            else:  # a value of the optimizer itself
                keys.append(type(state))
        for group in optimizer.param_groups:
            _note(group, objects, keys)
        return objects, keys

    def is_current() -> bool:
        objects, keys = held()
        return are_same(objects, known) and keys == known_keys

    # The objects themselves are kept: the ids of objects that are gone are reused.
    known, known_keys = held()
    return is_current


def _note(container: Container, objects: list[Any], keys: list[Any]) -> None:
    """Collect the containers and tensors of an optimizer, and the keys of all else.

    A tensor that is the same object may have other memory, so its place is noted with the keys.
    """
    if isinstance(container, list):
        before = len(objects)
        entries: Iterable[Any] = container
    else:
        objects.append(container)
        keys.append((*container,))
        entries = container.values()
    for entry in entries:
        if isinstance(entry, torch.Tensor):
            objects.append(entry)
            keys.append(place(entry))
        elif isinstance(entry, Mapping | list):
            _note(entry, objects, keys)
    # A list without tensors is a value itself.
    if isinstance(container, list) and len(objects) > before:
        objects.append(container)
        keys.append(len(container))


def tensor_check(values: Mapping[str, Any], name: str, tensor: torch.Tensor) -> Check:
    """Return a check that the entry is the same tensor, in the same memory."""
    known, trains = place(tensor), tensor.requires_grad
    return lambda: (
        values.get(name) is tensor and place(tensor) == known and tensor.requires_grad is trains
    )
