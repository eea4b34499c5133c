"""Finds schedulers and scalers of a script that are not in its state, and puts them back.

What steps with the optimizer and is not saved begins from zero in a new process. A rehearsal makes
a step several times, so that such an object would be ahead of its run afterwards.
"""

import copy
import gc
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from spotelastic.training.state.state import State

DEPTH = 3
"""How many objects within each other are looked into for what the state holds."""
_KINDS = (LRScheduler, torch.amp.GradScaler)


class Foreign:
    """What steps beside the state, as it was when this was made."""

    def __init__(self, state: State) -> None:
        own: set[int] = set()
        _reach(state.values.values(), own, DEPTH)
        # By its type: `isinstance` asks an object for its class, which may be any code of the
        # script's, or a weak reference to what is gone.
        found = (each for each in gc.get_objects() if issubclass(type(each), _KINDS))
        self._noted: list[tuple[Any, Any]] = []
        for each in found:
            if id(each) not in own:
                with suppress(Exception):  # one that cannot be copied is not put back
                    self._noted.append((each, copy.deepcopy(each.state_dict())))

    def changed(self) -> list[str]:
        """Return the names of the classes of those that have changed."""
        return [
            type(each).__name__
            for each, noted in self._noted
            if repr(each.state_dict()) != repr(noted)
        ]

    def put_back(self) -> None:
        """Make them what they were."""
        for each, noted in self._noted:
            each.load_state_dict(copy.deepcopy(noted))


def _reach(values: Iterable[Any], found: set[int], depth: int) -> None:
    for value in values:
        if id(value) in found or isinstance(value, torch.Tensor | torch.nn.Module | type):
            continue
        found.add(id(value))
        if not depth:
            continue
        if isinstance(value, dict):
            _reach(value.values(), found, depth - 1)
        elif isinstance(value, list | tuple):
            _reach(value, found, depth - 1)
        elif hasattr(value, "state_dict") and hasattr(value, "__dict__"):
            _reach(vars(value).values(), found, depth - 1)
