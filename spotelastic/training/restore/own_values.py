"""What is saved besides the script's state: the step, the seed, and each rank's random numbers."""

from collections.abc import Callable
from typing import Any

import torch
from spotelastic_checkpoints.format.layout import SHARED

from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.restore.resuming import BRANCH, NO_BRANCH
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state import randomness
from spotelastic.training.state.value_entries import OWN, ValueEntry


def added_values(
    ranks: Ranks, last_step: Callable[[], int], branch: Callable[[], int]
) -> list[ValueEntry]:
    """Return the values that are saved besides the script's state."""
    return [
        _own_entry("step", last_step),
        _own_entry("seed", torch.initial_seed),
        _own_entry(BRANCH, branch),
        _own_entry(f"rng-{ranks.rank}", randomness.capture, ranks.rank),
    ]


def restore_randomness(ranks: Ranks, restored: RestoreSource) -> None:
    """Restore this rank's random numbers; with another number of ranks, derive them."""
    state = None
    if restored.world_size == ranks.world_size:
        state = restored.own_value(f"rng-{ranks.rank}")
    if state is not None:
        randomness.apply(state)
    else:
        randomness.derive(restored.own_value("seed"), restored.step, ranks.rank)


def branch_of(restored: RestoreSource) -> int:
    """Return the step to which the run was sent back last."""
    branch = restored.own_value(BRANCH)
    return NO_BRANCH if branch is None else branch


def _own_entry(name: str, get: Any, rank: int = SHARED) -> ValueEntry:
    return ValueEntry(f"{OWN}.{name}", (OWN, name), get, rank)
