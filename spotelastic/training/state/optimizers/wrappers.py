"""Finds the optimizer behind a wrapper, as accelerate, Lightning and Opacus make them.

Wrappers say that they are optimizers, but have nothing of their own to save. Most of what torch's
functions expect is in the optimizer behind them.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from spotelastic.training.state.generators import SavedGenerator, is_generator

_BEHIND = ("optimizer", "_optimizer", "original_optimizer")
"""Attributes in which wrappers keep the optimizer."""

_saying_the_same: WeakKeyDictionary[torch.optim.Optimizer, bool] = WeakKeyDictionary()
"""Answers of `_says_the_same`, remembered because entries of the state are looked at often."""


def behind(value: Any) -> Any:
    """Return the optimizer behind a wrapper that shares its state; anything else as it is."""
    while isinstance(value, torch.optim.Optimizer):
        inner = next(
            (found for name in _BEHIND if _shares(value, found := vars(value).get(name))), None
        )
        if inner is None:
            break
        value = inner
    return value


def _shares(wrapper: torch.optim.Optimizer, found: object) -> bool:
    """Return whether the wrapper has no state of its own.

    One that has, such as slow weights, is saved.
    """
    return (
        isinstance(found, torch.optim.Optimizer)
        and found is not wrapper
        and wrapper.state is found.state
        and wrapper.param_groups is found.param_groups
        and _says_the_same(wrapper, found)
    )


def _says_the_same(wrapper: torch.optim.Optimizer, found: torch.optim.Optimizer) -> bool:
    """Return whether both state_dict()s have the same entries.

    Some wrappers keep state elsewhere.
    """
    if type(wrapper).state_dict is torch.optim.Optimizer.state_dict:
        return True
    if wrapper not in _saying_the_same:
        _saying_the_same[wrapper] = {*wrapper.state_dict()} == {*found.state_dict()}
    return _saying_the_same[wrapper]


class Unwrapped(MutableMapping[str, Any]):
    """The script's own mapping, with optimizers in place of their wrappers.

    Generators of random numbers have a `state_dict()` in it.
    """

    def __init__(self, values: MutableMapping[str, Any]) -> None:
        self._values = values
        self._generators: dict[str, SavedGenerator] = {}

    def __getitem__(self, name: str) -> Any:
        value = behind(self._values[name])
        if not is_generator(value):
            return value
        known = self._generators.get(name)
        if known is None or known.value is not value:
            known = self._generators[name] = SavedGenerator(value)
        return known

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
