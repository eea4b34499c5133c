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


def restore(state: State, *saved: modes.Saved | None, trains: bool = False) -> None:
    """Restore on the last of these ranks."""
    value = {f"modes-{rank}": each for rank, each in enumerate(saved)}.get
    modes.restore(state, value, (len(saved) - 1, *reversed(range(len(saved)))), trains=trains)


def flags(model: nn.Module) -> list[bool]:
    return [each.training for each in model.modules()]


def test_what_was_put_into_eval_mode_is_in_it_again() -> None:
    model, state = begun()
    entry = modes.entry(state, 0)
    model[1].eval()
    again, restored = begun()
    restore(restored, entry.get())
    assert flags(again) == flags(model) == [True, True, False, False]


def test_what_a_script_that_evaluates_has_put_into_eval_mode_stays_so() -> None:
    _, state = begun()
    saved = modes.entry(state, 0).get()
    read, restored = begun()
    read.eval()
    restore(restored, saved)
    assert not any(flags(read))


def test_a_step_from_before_it_was_put_into_eval_mode_trains_it() -> None:
    """In the process that did so, as after a loss. What was in eval mode at first stays so."""
    model, state = begun()
    saved = modes.entry(state, 0).get()
    model.eval()
    restore(state, saved, trains=True)
    assert flags(model) == [True, True, True, False]


@pytest.mark.parametrize("saved", [None, (7, b"\1\1\1\1")])
def test_what_is_not_of_these_modules_changes_nothing(saved: modes.Saved | None) -> None:
    model, state = begun()
    restore(state, saved)
    assert flags(model) == [True, True, True, False]


def test_a_rank_whose_own_modes_are_gone_takes_those_of_the_last_that_has_some() -> None:
    """It is new, or its node was lost with them. Rank 0 alone evaluates in many scripts."""
    model, state = begun()
    model.eval()
    first = modes.entry(state, 0).get()
    model.train()
    model[1].eval()
    second = modes.entry(state, 1).get()
    again, restored = begun()
    restore(restored, first, second, None)
    assert flags(again) == [True, True, False, False]
