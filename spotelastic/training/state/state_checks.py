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

    They may be replaced or moved to other memory. A view keeps the old memory from being reused.
    """

    def filled() -> list[torch.Tensor]:
        return [tensor for part in parts for tensor in part.values() if tensor is not None]

    def children() -> list[torch.nn.Module | None]:
        return [child for held in owners for child in held.values()]

    def is_current() -> bool:
        now, tensors_now = children(), filled()
        return (
            not any(bare)
            and are_same(now, known_children)
            and are_same(tensors_now, known)
            and [place(tensor) for tensor in tensors_now] == places
        )

    modules = [*module.modules()]
    owners = [held for each in modules if (held := each._modules)]
    parts = [part for each in modules for part in (each._parameters, each._buffers) if part]
    # Most modules have none of one kind or another. These are all looked at in one go.
    bare = [
        held
        for each in modules
        for held in (each._modules, each._parameters, each._buffers)
        if not held
    ]
    known, known_children = filled(), children()
    places = [place(tensor) for tensor in known]
    return is_current


def are_same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return whether both have the same objects in the same order."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


def optimizer_check(optimizer: torch.optim.Optimizer) -> Check:
    """Return a check that an optimizer still has the same tensors and containers."""

    def held() -> tuple[list[Any], list[Any]]:
        objects: list[Any] = []
        keys: list[Any] = []
        for state in optimizer.state.values():
            _note(state, objects, keys)
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
