"""Optimizers that stand in front of another one, and have nothing of their own to save.

Accelerate, Lightning and Opacus hand such out. They say that they are optimizers, but most of what
torch's functions expect of one is in the optimizer behind them.
"""

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any
from weakref import WeakKeyDictionary

import torch

_BEHIND = ("optimizer", "_optimizer", "original_optimizer")

_saying_the_same: WeakKeyDictionary[torch.optim.Optimizer, bool] = WeakKeyDictionary()
"""Asked once: entries of the state are looked at often."""


def behind(value: Any) -> Any:
    """The optimizer behind a wrapper that shares its state; anything else as it is."""
    while isinstance(value, torch.optim.Optimizer):
        inner = next(
            (found for name in _BEHIND if _shares(value, found := _held(value, name))), None
        )
        if inner is None:
            break
        value = inner
    return value


def _held(value: object, name: str) -> object:
    return vars(value).get(name)


def _shares(wrapper: torch.optim.Optimizer, found: object) -> bool:
    """A wrapper with state of its own, such as slow weights, is saved as what it is."""
    return (
        isinstance(found, torch.optim.Optimizer)
        and found is not wrapper
        and wrapper.state is found.state
        and wrapper.param_groups is found.param_groups
        and _says_the_same(wrapper, found)
    )


def _says_the_same(wrapper: torch.optim.Optimizer, found: torch.optim.Optimizer) -> bool:
    """Some keep what is theirs elsewhere, and tell it in their state_dict()."""
    if type(wrapper).state_dict is torch.optim.Optimizer.state_dict:
        return True
    if wrapper not in _saying_the_same:
        _saying_the_same[wrapper] = {*wrapper.state_dict()} == {*found.state_dict()}
    return _saying_the_same[wrapper]


class Unwrapped(MutableMapping[str, Any]):
    """The script's own mapping, with the optimizers that do the work in place of their wrappers."""

    def __init__(self, values: MutableMapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return behind(value) if isinstance(value, torch.optim.Optimizer) else value

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    # Without a call for each: a state may have thousands of entries.
    def items(self) -> ItemsView[str, Any]:
        return self._unwrapped().items()

    def values(self) -> ValuesView[Any]:
        return self._unwrapped().values()

    def _unwrapped(self) -> Mapping[str, Any]:
        kinds = set(map(type, self._values.values()))
        if not any(issubclass(kind, torch.optim.Optimizer) for kind in kinds):
            return self._values
        optimizer = torch.optim.Optimizer
        return {
            name: behind(value) if isinstance(value, optimizer) else value
            for name, value in self._values.items()
        }
