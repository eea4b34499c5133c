"""One rank's copy of what a parameter server serves: parameters, optimizer, and what is done.

All ranks have one. That of the server and of the standby is changed by each update; those of the
others are as they were when the window began. What is saved is the state at a window's end, which
is the same on all ranks.
"""

import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from spotelastic.training.parameter_server import vectors
from spotelastic.training.parameter_server.order import Applied
from spotelastic.training.state.lasting import Lasting


class Label(NamedTuple):
    """How new a copy is. The newest of a round's ranks is the one that all go on from.

    A process outlives its round only into the next one (in-place recovery), so that what it has is
    newer than any save. Of several such copies that of the later attempt counts, then the version.
    """

    lives: bool
    """Whether this process has it from a window that it took part in, not from a save."""
    epoch: int
    """Number of the attempt in which all ranks last agreed on one copy."""
    version: int
    """Updates made."""


class ServedState(Lasting):
    """A model with its optimizer, as an entry of the Checkpointer's state."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None
    ) -> None:
        self.model, self._optimizer, self._scheduler = model, optimizer, scheduler
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        self._parts = {name: part for name, part in named.items() if part is not None}
        self.applied = Applied()
        self.epoch = 0
        self.window = 0
        """The last window that has begun."""
        self.target = 0
        """The version with which it ends."""
        self._lives = False
        self._kept = self._clone()
        """The state at the end of the last window that counts."""

    @property
    def label(self) -> Label:
        return Label(self._lives, self.epoch, self.applied.version)

    def parameters(self) -> torch.Tensor:
        """Return a copy of the present parameters as one vector, with room for a loss."""
        return vectors.of_parameters(self.model)

    def begin(self, window: int, updates: int) -> None:
        """Begin a window of so many updates, or go on with it if it has begun."""
        if window > self.window:
            self.window, self.target = window, self.applied.version + updates

    def agreed(self, epoch: int) -> None:
        """Note that all ranks of this attempt have this very copy."""
        self._lives, self.epoch = True, epoch

    def apply(self, gradient: torch.Tensor, batches: Sequence[int]) -> None:
        """Make an update. Raises `ValueError` if one of the batches is part of an earlier one."""
        applied = self.applied.after(batches)
        vectors.put_gradients(gradient, self.model)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._scheduler is not None:
            self._scheduler.step()
        self.applied = applied

    def keep(self) -> None:
        """Take the present state for what is saved. Only after the vote of the window."""
        self._kept = self._clone()

    # -- the whole of it, for other ranks ----------------------------------------------------------

    def packed(self) -> torch.Tensor:
        """Return the present state as bytes."""
        file = io.BytesIO()
        torch.save(self._state(), file)
        return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)

    def unpack(self, data: torch.Tensor) -> None:
        """Have the state that another rank has packed. Nothing but tensors and values is read."""
        found = torch.load(io.BytesIO(data.numpy().data), map_location="cpu", weights_only=True)
        self._load(found)

    # -- the Checkpointer's ------------------------------------------------------------------------

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        return optimizer is self._optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the end of the last window that counts."""
        return self._kept

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Have a saved state, unless this process has a newer one."""
        if not self._lives:
            self._load(copy.deepcopy(saved))  # optimizers keep what they are given
            self._kept = self._clone()

    def _state(self) -> dict[str, Any]:
        applied = self.applied
        return {
            **{name: part.state_dict() for name, part in self._parts.items()},
            "updates": applied.version,
            "batches": applied.first,
            "beyond": sorted(applied.beyond),
            "window": self.window,
            "target": self.target,
            "epoch": self.epoch,
        }

    def _clone(self) -> dict[str, Any]:
        return copy.deepcopy(self._state())

    def _load(self, found: Mapping[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(found[name])
        self.applied = Applied(found["updates"], found["batches"], frozenset(found["beyond"]))
        self.window, self.target, self.epoch = found["window"], found["target"], found["epoch"]
