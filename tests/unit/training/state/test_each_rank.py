"""What each rank has of its own is there again in a new process: modes of modules, and the loss."""

import pytest
import torch
from torch import nn

from spotelastic.training.state import each_rank, growth
from spotelastic.training.state.state import State


def begun() -> tuple[nn.Sequential, State]:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[2].eval()
    state = State({"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)})
    growth.begin(state)
    return model, state


def restore(state: State, *saved: each_rank.Saved | None, trains: bool = False) -> float:
    """Restore on the last of these ranks, and return the loss."""
    value = {f"rank-{rank}": each for rank, each in enumerate(saved)}.get
    ranks = len(saved) - 1, *reversed(range(len(saved)))
    return each_rank.restore(state, value, ranks, trains=trains)


def flags(model: nn.Module) -> list[bool]:
    return [each.training for each in model.modules()]


def test_what_was_put_into_eval_mode_is_in_it_again() -> None:
    model, state = begun()
    entry = each_rank.entry(state, 0, lambda: 0.5)
    model[1].eval()
    again, restored = begun()
    restore(restored, entry.get())
    assert flags(again) == flags(model) == [True, True, False, False]


def test_what_a_script_that_evaluates_has_put_into_eval_mode_stays_so() -> None:
    _, state = begun()
    saved = each_rank.entry(state, 0, lambda: 0.5).get()
    read, restored = begun()
    read.eval()
    restore(restored, saved)
    assert not any(flags(read))


def test_a_step_from_before_it_was_put_into_eval_mode_trains_it() -> None:
    """In the process that did so, as after a loss. What was in eval mode at first stays so."""
    model, state = begun()
    saved = each_rank.entry(state, 0, lambda: 0.5).get()
    model.eval()
    restore(state, saved, trains=True)
    assert flags(model) == [True, True, True, False]


@pytest.mark.parametrize("saved", [None, (7, b"\1\1\1\1", 0.5)])
def test_what_is_not_of_these_modules_changes_nothing(saved: each_rank.Saved | None) -> None:
    model, state = begun()
    restore(state, saved)
    assert flags(model) == [True, True, True, False]


def test_a_rank_whose_own_modes_are_gone_takes_those_of_the_last_that_has_some() -> None:
    """It is new, or its node was lost with them. Rank 0 alone evaluates in many scripts."""
    model, state = begun()
    model.eval()
    first = each_rank.entry(state, 0, lambda: 0.5).get()
    model.train()
    model[1].eval()
    second = each_rank.entry(state, 1, lambda: 0.25).get()
    again, restored = begun()
    assert restore(restored, first, second, None) == 0.25
    assert flags(again) == [True, True, False, False]
