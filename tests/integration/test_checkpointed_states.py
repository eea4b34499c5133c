"""What a state may be made of: it comes back as it was."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.processes.patience import PATIENT
from support.training.small_model import make, one_step
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.restore import streaming
from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state import derived
from spotelastic.training.state import state as training_state


def test_a_state_of_several_files_is_read_by_us_and_by_stock_dcp(tmp_path: Path) -> None:
    state: dict[str, Any] = {f"w{number}": torch.rand(3 << 20) for number in range(8)}
    saved = {name: tensor.clone() for name, tensor in state.items()}
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    folder = tmp_path / "1" / "step-00000001"
    assert len(list(folder.glob("__0_*.distcp"))) > 2

    target = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    dcp.load(target, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(target[name], tensor) for name, tensor in saved.items())
    for tensor in state.values():
        tensor.zero_()
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 1
    assert all(torch.equal(state[name], tensor) for name, tensor in saved.items())


def test_what_was_filled_before_damage_was_found_is_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one_by_one = functools.partial(streaming.windows, size=1)
    monkeypatch.setattr("spotelastic.training.restore.restored.windows", one_by_one)
    state: dict[str, Any] = {f"w{number}": torch.zeros(1000) for number in range(9)}
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in (1, 2):
            for tensor in state.values():
                tensor.fill_(step)
            checkpoint.step(step)
            assert checkpoint.wait(PATIENT)
    shard = tmp_path / "1" / "step-00000002" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.rindex(state["w8"].numpy().tobytes())] ^= 1
    shard.write_bytes(data)
    filled: list[float] = []
    fill = RestoreSource.fill

    def fill_and_tell(self: RestoreSource, window: streaming.Window, moved: Any) -> None:
        fill(self, window, moved)
        filled.append(window.copies[0].tensor[0].item())

    monkeypatch.setattr(RestoreSource, "fill", fill_and_tell)
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 1
    assert filled[0] == 2, "something was filled before the damage was found"
    assert all((tensor == 1).all() for tensor in state.values())
    assert "going back to 1" in capfd.readouterr().err


class Counting(nn.Module):
    """Keeps something beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls = 0

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state


def test_what_modules_keep_beside_tensors_is_saved_as_it_is_then(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": nn.Sequential(Counting(), nn.Linear(2, 2))}
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in (1, 2):
            state["model"][0].calls = 10 * step
            checkpoint.step(step)
    again: dict[str, Any] = {"model": nn.Sequential(Counting(), nn.Linear(2, 2))}
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 2
    assert again["model"][0].calls == 20
    assert torch.equal(again["model"][1].weight, state["model"][1].weight)


def test_a_save_of_an_unchanged_layout_asks_nobody_for_a_state_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(module: Any, name: str) -> Any:
        original = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            return original(*arguments, **options)

        return call

    for module, name in (
        (training_state, "get_model_state_dict"),
        (training_state, "get_optimizer_state_dict"),
        (derived, "get_model_state_dict"),
        (derived, "flat_state"),
    ):
        monkeypatch.setattr(module, name, counted(module, name))

    def gather(ranks: Ranks, value: object) -> list[object]:
        asked.append("gather")
        return [value]

    monkeypatch.setattr(Ranks, "gather", gather)
    state = make()
    with se.Checkpointer(state, storage=str(tmp_path), snapshot_every=1) as checkpoint:
        checkpoint.step(1, loss=one_step(state))
        assert {"get_model_state_dict", "get_optimizer_state_dict", "gather"} <= set(asked)
        asked.clear()
        for step in range(2, 8):
            checkpoint.step(step, loss=one_step(state))
        assert asked == []


class Notes:
    """Says in its state what names with dots in them cannot: kinds of keys, what is empty."""

    def __init__(self, state: dict[Any, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[Any, Any]:
        return self.state

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.state = state


def test_a_state_comes_back_with_its_keys_and_containers_as_they_were(tmp_path: Path) -> None:
    def others(seed: int) -> dict[str, Any]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW([nn.Parameter(torch.full((2,), float(seed)))], lr=seed)
        return {
            "model": model,
            "of_a_model_elsewhere": optimizer,
            "schedule": torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5] if seed else [1]),
            "partial": torch.optim.lr_scheduler.LambdaLR(optimizer, [functools.partial(pow, 0.5)]),
            "notes": Notes({1: {"empty": {}, "1": [{}, {"t": torch.arange(seed)}], 2: (seed,)}}),
        }

    state = others(7)
    optimizer = state["of_a_model_elsewhere"]
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    again = others(0)
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
    assert again["schedule"].milestones == Counter({3: 1, 5: 1})
    assert again["schedule"].state_dict() == state["schedule"].state_dict()
    assert again["partial"].state_dict() == state["partial"].state_dict()
    assert repr(again["notes"].state) == repr(state["notes"].state)
    [moments] = again["of_a_model_elsewhere"].state.values()
    [expected] = optimizer.state.values()
    assert torch.equal(moments["exp_avg"], expected["exp_avg"])


def test_tensors_in_containers_are_restored_in_place(tmp_path: Path) -> None:
    """As by `dcp.load`: whoever gives a model's state_dict() finds the model restored."""

    def made(scale: float) -> tuple[nn.Linear, dict[str, Any]]:
        model = nn.Linear(3, 2)
        nn.init.constant_(model.weight, scale)
        history = [{"mean": torch.full((2,), scale)}, "end"] if scale else []
        return model, {"model": model.state_dict(), "history": history, "best": {1: scale}}

    _, state = made(3.0)
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        checkpoint.step(1)
        state["model"]["weight"].add_(1)
        state["history"].append({"mean": torch.zeros(1)})
        checkpoint.step(2)
    folder = tmp_path / "1" / "step-00000002"
    stock = {"model": {"weight": torch.empty(2, 3), "bias": torch.empty(2)}}
    dcp.load(stock, checkpoint_id=folder, no_dist=True)
    assert torch.equal(stock["model"]["weight"], torch.full((2, 3), 4.0))

    model, again = made(0.0)
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 2
    assert torch.equal(model.weight, torch.full((2, 3), 4.0)), "in place"
    assert again["model"]["weight"].data_ptr() == model.weight.data_ptr()
    assert again["best"] == {1: 3.0}
    assert repr(again["history"]) == repr(state["history"])

    other = {**made(0.0)[1], "model": nn.Linear(3, 4).state_dict()}
    with (
        pytest.raises(UsageError, match=r"model\.weight is float32 \[2, 3\] there"),
        se.Checkpointer(other, storage=str(tmp_path)) as checkpoint,
    ):
        checkpoint.restore()


def test_a_state_that_grows_at_each_save_is_saved_each_time(tmp_path: Path) -> None:
    state: dict[str, Any] = {"losses": Notes({"all": torch.zeros(0)})}
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in range(1, 4):
            state["losses"].state["all"] = torch.zeros(step << 22)  # to make its slots takes time
            checkpoint.step(step)
            assert checkpoint.wait()
            assert (tmp_path / "1" / f"step-{step:08d}" / ".metadata").exists()


def test_an_optimizer_of_two_models_is_saved_by_names(tmp_path: Path) -> None:
    def pair(seed: int, *, turned: bool = False) -> dict[str, Any]:
        torch.manual_seed(seed)
        left, right = nn.Linear(3, 3), nn.Linear(3, 3)
        models = (right, left) if turned else (left, right)
        optimizer = torch.optim.AdamW([p for model in models for p in model.parameters()])
        return {"left": left, "right": right, "both": optimizer}

    def one(state: dict[str, Any]) -> None:
        state["right"](state["left"](torch.ones(1, 3))).sum().backward()
        state["both"].step()
        state["both"].zero_grad()

    state, again = pair(1), pair(2, turned=True)
    one(state)
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    with se.Checkpointer(again, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
    one(state)
    one(again)
    assert torch.equal(again["left"].weight, state["left"].weight)
    assert torch.equal(again["right"].weight, state["right"].weight)


def restored(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    with se.Checkpointer(state, storage=str(folder)) as checkpoint:
        checkpoint.restore()
    return state


@pytest.mark.parametrize("every", [1, 2, 100])
def test_a_change_after_a_steps_save_is_saved_or_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], every: int
) -> None:
    def made() -> dict[str, Any]:
        return {"model": nn.BatchNorm1d(2), "best": None, "names": {"a", "b", "c"}}

    state = made()
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=every) as checkpoint:
        for step in (1, 2):
            checkpoint.step(step)
        assert checkpoint.save() and checkpoint.save(), "nothing was changed"
        state["model"].running_mean.fill_(777)
        assert not checkpoint.save()
        checkpoint.step(3)
        assert checkpoint.save() and checkpoint.wait(PATIENT)
        state["best"] = "too late"
    told = capfd.readouterr().err
    assert told.count("model.running_mean was changed after step 2 had been saved") == 1
    assert told.count("best was changed after step 3 had been saved") == 1
    again = restored(tmp_path, made())
    assert again["model"].running_mean.eq(777).all()
    assert again["best"] is None


def test_a_restored_state_that_is_changed_is_saved_again(tmp_path: Path) -> None:
    state: dict[str, Any] = {"best": 1}
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
        state["best"] = 2
        assert checkpoint.save() and checkpoint.wait(PATIENT)
    assert restored(tmp_path, {"best": 0}) == {"best": 2}


def test_after_a_save_that_was_refused_the_next_ones_are_whole(tmp_path: Path) -> None:
    state: dict[str, Any] = {"t": torch.zeros(3), "value": 0}
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in range(1, 9):
            state["t"] = torch.full((3,), float(step))
            state["value"] = object() if step in (2, 3, 5) else step
            if step in (2, 3, 5):
                with pytest.raises(UsageError, match="value is more than data"):
                    checkpoint.step(step)
                state["value"] = step
                assert checkpoint.save()
            else:
                checkpoint.step(step)
            assert checkpoint.wait(PATIENT)
            assert (tmp_path / "1" / f"step-{step:08d}" / ".metadata").exists()
    again = restored(tmp_path, {"t": torch.zeros(3), "value": 0})
    assert again["value"] == 8 and again["t"].eq(8).all()


def test_what_is_added_and_could_not_be_restored_is_refused_at_its_first_save(
    tmp_path: Path,
) -> None:
    state: dict[str, Any] = {"model": nn.Sequential(nn.Linear(2, 2))}
    with (
        pytest.raises(UsageError, match=r"model\.1 was added after checkpoint\.restore\(\)"),
        se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint,
    ):
        checkpoint.restore()
        checkpoint.step(1)
        state["model"].append(nn.Linear(2, 2))
        checkpoint.step(2)
    assert restored(tmp_path, {"model": nn.Sequential(nn.Linear(2, 2))})


def test_another_state_is_refused_with_what_to_do_and_left_as_it_is(tmp_path: Path) -> None:
    grown: dict[str, Any] = {"rows": torch.zeros(0), "model": nn.Linear(2, 2)}
    with se.Checkpointer(grown, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
        grown["rows"], grown["note"] = torch.ones(3), "of the run"
        checkpoint.step(1)
    other: dict[str, Any] = {"rows": torch.zeros(0), "model": nn.Linear(2, 5)}
    rows = other["rows"]
    with (
        pytest.raises(UsageError, match=r"storage of its own \(storage=\) or begin afresh"),
        se.Checkpointer(other, storage=str(tmp_path)) as checkpoint,
    ):
        checkpoint.restore()
    assert other["rows"] is rows and "note" not in other


def test_an_optimizer_of_another_class_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def made(kind: type[torch.optim.Adam | torch.optim.SGD]) -> dict[str, Any]:
        model = nn.Linear(2, 2)
        return {"model": model, "optimizer": kind(model.parameters())}

    with se.Checkpointer(made(torch.optim.Adam), storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    restored(tmp_path, made(torch.optim.AdamW))
    told = capfd.readouterr().err
    assert "optimizer was saved of torch.optim.adam.Adam and is torch.optim.adamw.AdamW" in told


@pytest.mark.soak
def test_what_is_compiled_within_an_activation_checkpoint_has_the_same_names(
    tmp_path: Path,
) -> None:
    def made(*, compiled: bool) -> dict[str, Any]:
        inner = nn.Linear(2, 2)
        part: Any = torch.compile(inner) if compiled else inner
        model = nn.Sequential(checkpoint_wrapper(part))
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), momentum=0.9)}

    state = made(compiled=True)
    with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    again = restored(tmp_path, made(compiled=False))
    assert all(map(torch.equal, again["model"].parameters(), state["model"].parameters()))


@pytest.mark.parametrize("value", [nn.CrossEntropyLoss(), nn.ReLU()])
def test_a_module_without_parameters_is_no_mistake(tmp_path: Path, value: nn.Module) -> None:
    with se.Checkpointer({"loss": value, "n": 1}, storage=str(tmp_path)) as checkpoint:
        checkpoint.step(1)
    assert restored(tmp_path, {"loss": value, "n": 0})["n"] == 1


def test_a_parameter_without_a_shape_is_named(tmp_path: Path) -> None:
    state = {"held": {"later": nn.UninitializedParameter()}}
    with (
        pytest.raises(UsageError, match=r"held\.later has no shape yet"),
        se.Checkpointer(state, storage=str(tmp_path)) as checkpoint,
    ):
        checkpoint.step(1)
