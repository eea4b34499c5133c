"""Gives a generator of random numbers what a state asks of an object, so that it can be saved.

rng = np.random.default_rng(0)
state = {"model": model, "rng": rng}
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
        if isinstance(self.value, random.Random):
            return {"state": self.value.getstate()}
        if isinstance(self.value, torch.Generator):
            return {"state": self.value.get_state().numpy().tobytes()}
        if hasattr(self.value, "bit_generator"):
            return {"state": self.value.bit_generator.state}
        return {"state": self.value.get_state()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Put the generator where it was."""
        state = saved["state"]
        if isinstance(self.value, random.Random):
            self.value.setstate(state)
        elif isinstance(self.value, torch.Generator):
            self.value.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        elif hasattr(self.value, "bit_generator"):
            self.value.bit_generator.state = state
        else:
            self.value.set_state(state)
