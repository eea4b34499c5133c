"""Gives a generator of random numbers what a state asks of an object, so that it can be saved.

A script puts it into its state as it is: `{"model": model, "rng": np.random.default_rng(0)}`.
"""

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def is_generator(value: object) -> bool:
    """Return whether a value is a generator of Python, numpy or torch."""
    if isinstance(value, random.Random | torch.Generator):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, numpy.random.Generator | numpy.random.RandomState
    )


class SavedGenerator:
    """A generator of the script's, whose `state_dict()` has plain values and arrays only."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        """Return where the generator is."""
        own = self.value
        if hasattr(own, "bit_generator"):
            return {"state": own.bit_generator.state}
        if isinstance(own, torch.Generator):
            return {"state": own.get_state().numpy().tobytes()}
        return {"state": own.getstate() if isinstance(own, random.Random) else own.get_state()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Put the generator where it was."""
        own, state = self.value, saved["state"]
        if hasattr(own, "bit_generator"):
            own.bit_generator.state = state
        elif isinstance(own, random.Random):
            own.setstate(state)
        else:
            is_torchs = isinstance(state, bytes)
            own.set_state(torch.tensor([*state], dtype=torch.uint8) if is_torchs else state)
