"""What training scripts do, and a Checkpointer must neither change nor lose."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training.small_model import make, one_step
from torch import nn

import spotelastic as se
from spotelastic.errors import UsageError


class Kept:
    """Says what it is given, as it is then."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def saved(state: dict[str, Any], storage: Path) -> None:
    with se.Checkpointer(state, storage=str(storage)) as checkpoint:
        checkpoint.step(1)


def restored(state: dict[str, Any], storage: Path) -> int:
    with se.Checkpointer(state, storage=str(storage)) as checkpoint:
        return checkpoint.restore()


def test_a_save_before_an_optimizers_first_step_makes_none(tmp_path: Path) -> None:
    """As of a script whose GradScaler has skipped it."""
    model, seen = nn.Linear(2, 2), []
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append("step"))
    saved({"model": model, "optimizer": optimizer}, tmp_path)
    assert (len(optimizer.state), seen) == (0, [])
    assert all(parameter.grad is None for parameter in model.parameters())


def trained(unfrozen: bool) -> dict[str, Any]:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(unfrozen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer}


def test_moments_of_what_is_frozen_now_and_gradients_that_are_there_are_no_obstacle(
    tmp_path: Path,
) -> None:
    state, again = trained(True), trained(False)
    state["model"](torch.ones(1, 2)).sum().backward()
    state["optimizer"].step()
    saved(state, tmp_path)
    again["model"](torch.ones(1, 2)).sum().backward()
    before = again["model"].weight.grad
    assert restored(again, tmp_path) == 1
    assert again["model"].weight.grad is before and not again["model"].bias.requires_grad
    moments = again["optimizer"].state[again["model"].bias]["exp_avg"]
    assert torch.equal(moments, state["optimizer"].state[state["model"].bias]["exp_avg"])


@pytest.mark.parametrize("first", [0.25, torch.tensor(0.25)])
@pytest.mark.parametrize("then", [0.5, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)])
def test_a_learning_rate_is_restored_whether_it_is_a_number_or_a_tensor(
    tmp_path: Path, first: Any, then: Any
) -> None:
    def made(rate: Any) -> dict[str, Any]:
        model = nn.Linear(1, 1)
        rate = rate.clone() if isinstance(rate, torch.Tensor) else rate
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=rate)}

    saved(made(first), tmp_path)
    again = made(then)
    restored(again, tmp_path)
    rate = again["optimizer"].param_groups[0]["lr"]
    assert float(rate) == 0.25 and type(rate) is type(then)


def test_an_optimizer_with_one_state_for_all_is_restored(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        return {"model": model, "optimizer": torch.optim.LBFGS(model.parameters())}

    def one(state: dict[str, Any]) -> None:
        def loss() -> torch.Tensor:
            state["optimizer"].zero_grad()
            found = state["model"](torch.ones(3, 2)).square().sum()
            found.backward()
            return found

        state["optimizer"].step(loss)

    state, again = made(), made()
    one(state)
    saved(state, tmp_path)
    restored(again, tmp_path)
    one(state)
    one(again)
    assert torch.equal(again["model"].weight, state["model"].weight)


def test_a_slice_that_grows_is_saved_at_its_length(tmp_path: Path) -> None:
    store = torch.arange(8.0)
    buffer = Kept({"rows": store[:1]})
    with se.Checkpointer({"b": buffer}, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in (1, 2, 3):
            buffer.state = {"rows": store[:step]}
            checkpoint.step(step)
            assert checkpoint.wait()
    again = Kept({"rows": torch.zeros(0)})
    restored({"b": again}, tmp_path)
    assert again.state["rows"].tolist() == [0.0, 1.0, 2.0]


def test_containers_that_the_script_holds_are_filled(tmp_path: Path) -> None:
    def made(value: float) -> dict[str, Any]:
        return {"ema": {"w": torch.full((2,), value)}, "log": [value], "best": {"step": value}}

    saved(made(3.0), tmp_path)
    state = made(0.0)
    ema, log, best = state["ema"], state["log"], state["best"]
    restored(state, tmp_path)
    assert ema is state["ema"] and ema["w"].tolist() == [3.0, 3.0]
    assert (log, best) == ([3.0], {"step": 3.0})


def test_steps_that_go_down_and_a_late_restore_are_refused(tmp_path: Path) -> None:
    state = make()
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(5, loss=one_step(state))
        checkpoint.step(5, loss=one_step(state))
        with pytest.raises(UsageError, match=r"step\(1\) after step\(5\): count steps over all"):
            checkpoint.step(1)
        with pytest.raises(UsageError, match="comes before the first step"):
            checkpoint.restore()
        with (
            pytest.raises(UsageError, match="another Checkpointer is open"),
            se.Checkpointer(state, storage=str(tmp_path / "other")),
        ):
            pass
    with pytest.raises(UsageError, match="this Checkpointer is closed"), checkpoint:
        pass
    assert restored(make(), tmp_path) == 5


def test_a_script_that_ends_itself_in_the_loop_has_its_last_step_committed(tmp_path: Path) -> None:
    state = make()
    with (
        pytest.raises(SystemExit),
        se.Checkpointer(state, storage=str(tmp_path)) as checkpoint,
    ):
        for step in range(1, 10):
            checkpoint.step(step, loss=one_step(state))
            if step == 4:  # its time is up
                sys.exit(0)
    assert restored(make(), tmp_path) == 4


def test_a_cursor_beyond_what_batches_leave_is_at_the_next_epoch() -> None:
    before = se.ElasticSampler(100, 10, drop_last=True)
    for _ in range(9):
        before.advance()
    after = se.ElasticSampler(100, 64, drop_last=True)
    after.load_state_dict(before.state_dict())
    assert (after.epoch, after.consumed, len(list(after))) == (1, 0, 1)
