"""Optimizers that stand in front of another one, and have nothing of their own to save.

Accelerate, Lightning and Opacus hand such out. They say that they are optimizers, but most of what
torch's functions expect of one is in the optimizer behind them.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

_BEHIND = ("optimizer", "_optimizer", "original_optimizer")


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
    )


class Unwrapped(MutableMapping[str, Any]):
    """The script's own mapping, with the optimizers that do the work in place of their wrappers."""

    def __init__(self, values: MutableMapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return behind(self._values[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
