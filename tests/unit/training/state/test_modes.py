"""Modules that a script puts into eval mode while it trains are in it again in a new process."""

import pytest
import torch
from torch import nn

from spotelastic.training.state import growth, modes
from spotelastic.training.state.state import State


def begun() -> tuple[nn.Sequential, State]:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[2].eval()
    state = State({"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)})
    growth.begin(state)
    return model, state


def flags(model: nn.Module) -> list[bool]:
    return [each.training for each in model.modules()]


def test_what_was_put_into_eval_mode_is_in_it_again() -> None:
    model, state = begun()
    entry = modes.entry(state, 0)
    model[1].eval()
    again, restored = begun()
    modes.restore(restored, entry.get(), trains=False)
    assert flags(again) == flags(model) == [True, True, False, False]


def test_what_a_script_that_evaluates_has_put_into_eval_mode_stays_so() -> None:
    _, state = begun()
    saved = modes.entry(state, 0).get()
    read, restored = begun()
    read.eval()
    modes.restore(restored, saved, trains=False)
    assert not any(flags(read))


def test_a_step_from_before_it_was_put_into_eval_mode_trains_it() -> None:
    """In the process that did so, as after a loss. What was in eval mode at first stays so."""
    model, state = begun()
    saved = modes.entry(state, 0).get()
    model.eval()
    modes.restore(state, saved, trains=True)
    assert flags(model) == [True, True, True, False]


@pytest.mark.parametrize("saved", [None, (7, b"\1\1\1\1")])
def test_what_is_not_of_these_modules_changes_nothing(saved: modes.Saved | None) -> None:
    model, state = begun()
    modes.restore(state, saved, trains=False)
    assert flags(model) == [True, True, True, False]


def test_a_rank_that_is_new_has_the_modes_of_the_last_one() -> None:
    """Rank 0 alone evaluates in many scripts."""
    assert [modes.name_of(rank, 2) for rank in range(4)] == [
        *("modes-0", "modes-1", "modes-1", "modes-1"),
    ]
