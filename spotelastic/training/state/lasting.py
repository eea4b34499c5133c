"""Marks state that a block changes on purpose before the vote, and that a lost peer does not undo.

A parameter server makes many updates within the block of one step. Some were acknowledged when a
peer is lost in it, so that the attempt that follows goes on from there.
"""

from abc import ABC, abstractmethod

import torch


class Lasting(ABC):
    """An entry of the state that keeps itself, whatever becomes of an attempt at a step.

    What its `state_dict()` returns changes after the vote alone. So what is saved of a step is the
    same on all ranks.
    """

    @abstractmethod
    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the entry steps this optimizer itself. No vote comes before that."""
