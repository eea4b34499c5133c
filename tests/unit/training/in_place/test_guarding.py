"""Which steps a guard skips, and what is left out after that."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import spotelastic as se
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training.in_place.guarding import HISTORY, WARM_UP, Fault, Reading, decide

USUAL = st.floats(0.5, 2.0)
ROWS, BATCH = 64, 4


@given(st.lists(USUAL, max_size=HISTORY), st.lists(USUAL, max_size=HISTORY), USUAL, USUAL)
def test_what_is_as_usual_is_no_fault(
    losses: list[float], norms: list[float], loss: float, norm: float
) -> None:
    assert decide(Reading(None, norm), losses, norms) is Fault.NONE
    assert decide(Reading(min(losses, default=loss), norm), losses, norms) is Fault.NONE


@given(st.lists(USUAL, min_size=WARM_UP, max_size=HISTORY), st.floats(41, 1e30))
def test_what_is_far_above_all_that_was_is_a_fault_once_there_is_a_history(
    history: list[float], far: float
) -> None:
    assert decide(Reading(far, 1.0), history, []) is Fault.LOSS_FAR
    assert decide(Reading(1.0, far), [], history) is Fault.NORM_FAR
    assert decide(Reading(far, far), history[: WARM_UP - 1], history[: WARM_UP - 1]) is Fault.NONE


@given(st.sampled_from((math.nan, math.inf, -math.inf)), st.lists(USUAL, max_size=HISTORY))
def test_what_is_not_finite_is_a_fault_at_any_time(odd: float, history: list[float]) -> None:
    assert decide(Reading(odd, 1.0), history, history) is Fault.LOSS_NOT_FINITE
    assert decide(Reading(1.0, odd), history, history) is Fault.NORM_NOT_FINITE


def test_a_loss_that_falls_and_a_history_of_one_value_are_no_fault() -> None:
    assert decide(Reading(-5.0, 1.0), [3.0] * WARM_UP, [1.0] * WARM_UP) is Fault.NONE
    assert decide(Reading(3.001, 9.0), [3.0] * WARM_UP, [1.0] * WARM_UP) is Fault.NONE


class Loop:
    """Trains on batches of which some are bad, and notes which were skipped."""

    def __init__(
        self, bad: dict[int, float], block: Callable[["Loop", Any], None] | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.sampler = se.ElasticSampler(ROWS, BATCH, seed=1)
        self.state = {"model": self.model, "optimizer": self.optimizer, "data": self.sampler}
        self.bad, self.block = bad, block or Loop.plain
        self.made: list[int] = []
        """Batches, from 0, that steps were made of."""
        self.skipped: list[int] = []

    @property
    def batch(self) -> int:
        return (self.sampler.epoch * ROWS + self.sampler.consumed) // BATCH

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(rows).square().mean()
        return found * self.bad.get(self.batch, 1.0)

    def plain(self, step: Any) -> None:
        step.loss = self.loss(self.rows)
        step.loss.backward()
        self.optimizer.step()

    def clips(self, step: Any) -> None:
        self.loss(self.rows).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()

    def late(self, step: Any) -> None:
        self.loss(self.rows).backward()
        step.vote()
        self.optimizer.step()

    def run(self, folder: Path, steps: int, *, guard: bool = True) -> list[torch.Tensor]:
        torch.manual_seed(5)
        data = torch.randn(ROWS, 4)
        with se.Checkpointer(
            self.state, storage=folder, guard=guard, snapshot_every=2, checkpoint_every=4
        ) as checkpoint:
            batches = checkpoint.batches(DataLoader(data, batch_sampler=self.sampler))  # type: ignore[arg-type]
            for step in checkpoint.steps(steps):
                batch = self.batch
                with step:
                    self.rows = next(batches)
                    self.optimizer.zero_grad()
                    self.block(self, step)
                (self.skipped if step.skipped else self.made).append(batch)
        return [each.detach().clone() for each in self.model.state_dict().values()]


def without(bad: dict[int, float], steps: int, folder: Path) -> list[torch.Tensor]:
    """What a run comes to from whose data these batches are left out."""
    loop = Loop({})
    loop.sampler.left_out |= {divmod(each * BATCH, ROWS) for each in bad}
    return loop.run(folder, steps, guard=False)


@pytest.mark.parametrize("block", [Loop.plain, Loop.clips, Loop.late])
def test_a_bad_step_is_as_if_it_had_not_been_made(tmp_path: Path, block: Any) -> None:
    bad = {1: math.nan, 2: math.inf, 25: 1e4, 28: math.nan, 30: -1e9}
    loop = Loop(bad, block)
    found = loop.run(tmp_path / "guarded", 36)
    assert loop.skipped == [*bad]
    assert loop.made == [each for each in range(36) if each not in bad]
    alone = Loop({}, block)
    alone.sampler.left_out |= {divmod(each * BATCH, ROWS) for each in bad}
    assert all(map(torch.equal, found, alone.run(tmp_path / "alone", 36 - len(bad), guard=False)))


def test_after_some_in_a_row_the_run_goes_back_and_a_restart_leaves_them_out(
    tmp_path: Path,
) -> None:
    bad = {13: math.nan, 14: math.nan, 15: math.nan}
    loop = Loop(bad)
    loop.run(tmp_path / "guarded", 20)
    assert loop.skipped == [13, 14, 15]
    assert loop.made == [*range(13), 12, *range(16, 23)]  # step 12 was saved: 13 is made again
    again = Loop(bad)
    found = again.run(tmp_path / "guarded", 30)
    assert not again.skipped
    assert again.sampler.left_out == {(0, 52), (0, 56), (0, 60)}
    assert all(map(torch.equal, found, without(bad, 30, tmp_path / "alone")))


def test_a_state_that_is_at_fault_ends_the_run(tmp_path: Path) -> None:
    bad = dict.fromkeys(range(9, 100), math.nan)
    with pytest.raises(SpotelasticError, match=r"after 3 other batches.*restore\(step=\.\.\.\)"):
        Loop(bad).run(tmp_path, 40)


@pytest.mark.parametrize("fused", [False, True])
def test_what_a_scaler_skips_is_no_fault(tmp_path: Path, fused: bool) -> None:
    """A fused optimizer is called by a scaler also where it is to leave its step out."""

    def scales(self: Loop, step: Any) -> None:
        loss = self.loss(self.rows)
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()

    loop = Loop({3: math.inf, 4: math.inf, 5: math.inf, 6: math.inf}, scales)
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), 1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1000)
    loop.state |= {"optimizer": loop.optimizer, "scaler": scaler}
    loop.run(tmp_path, 10)
    assert not loop.skipped
    assert scaler.get_scale() == 2.0**36


def test_steps_that_cannot_be_undone_are_not_guarded(tmp_path: Path) -> None:
    with se.Checkpointer({"at": torch.zeros(1)}, storage=tmp_path, guard=True) as checkpoint:
        checkpoint.restore()
        with pytest.raises(UsageError, match=r"--guard: a step of checkpoint\.step\(\)"):
            checkpoint.step(1)


def test_gradients_are_watched_for_as_long_as_a_guard_is_there(tmp_path: Path) -> None:
    before = torch.nn.utils.clip_grad.__dict__["_get_total_norm"]
    Loop({}).run(tmp_path, 2)
    assert torch.nn.utils.clip_grad.__dict__["_get_total_norm"] is before
