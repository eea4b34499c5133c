"""Files of torch.save, imported by `spotelastic ckpt import`: a run goes on from them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se
from spotelastic.cli.main import main
from spotelastic.errors import UsageError

State = dict[str, Any]


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))


def with_momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def with_two_groups(model: nn.Module) -> torch.optim.Optimizer:
    """In another order than the model's, so that numbers are not those of the model."""
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    groups: list[dict[str, Any]] = [
        {"params": biases, "weight_decay": 0.0},
        {"params": weights},
    ]
    return torch.optim.AdamW(groups, lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def bare(model: nn.Module) -> nn.Module:
    inner: nn.Module = getattr(model, "module", model)
    return inner


def imported(state: State, folder: Path, *options: str) -> str:
    """The storage that the command, given these, has put the state into."""
    file, storage = folder / "saved.pt", str(folder / "run")
    torch.save(state, file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["spotelastic", "ckpt", "import", str(file), storage, *options])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return storage


def restored(state: State, storage: str) -> int:
    with se.Checkpointer(state, storage=storage) as checkpoint:
        return checkpoint.restore()


def check_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            check_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            check_same(*pair)
    else:
        assert found == expected


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("made", [with_momentum, with_two_groups])
@pytest.mark.parametrize("wrap", [bare, DistributedDataParallel])
def test_a_model_and_its_optimizer_go_on_as_they_were_saved(
    made: Callable[[nn.Module], torch.optim.Optimizer],
    wrap: Callable[[nn.Module], nn.Module],
    tmp_path: Path,
    group: None,
) -> None:
    model = wrap(network(1))
    optimizer = made(model)
    train(model, optimizer, 3)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    storage = imported(saved, tmp_path, "--step", "30")

    # What was saved of a plain model may be trained in DDP, and the other way round.
    for other in (network(2), DistributedDataParallel(network(2))):
        again = made(other)
        state: State = {"model": other, "optimizer": again, "epoch": 0}
        assert restored(state, storage) == 30
        assert state["epoch"] == 3
        check_same(bare(other).state_dict(), bare(model).state_dict())
        check_same(again.state_dict(), optimizer.state_dict())
    train(model, optimizer, 2)
    train(other, again, 2)
    check_same(bare(other).state_dict(), bare(model).state_dict())


def test_what_a_run_saves_that_was_imported_is_its_own(tmp_path: Path) -> None:
    model = network(1)
    optimizer = with_two_groups(model)
    train(model, optimizer, 2)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    storage = imported(saved, tmp_path)

    def state(seed: int) -> State:
        other = network(seed)
        return {"model": other, "optimizer": with_two_groups(other)}

    first = state(2)
    with se.Checkpointer(first, storage=storage) as checkpoint:
        assert checkpoint.restore() == 0
        train(first["model"], first["optimizer"], 1)
        checkpoint.step(1)
    second = state(3)
    assert restored(second, storage) == 1
    for name in first:
        check_same(second[name].state_dict(), first[name].state_dict())


def test_an_optimizer_keeps_what_only_some_of_its_parameters_had(tmp_path: Path) -> None:
    model = network(1)
    model[0].requires_grad_(False)
    optimizer = with_momentum(model)
    train(model, optimizer, 2)
    assert len(optimizer.state) == 4
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    storage = imported(saved, tmp_path)
    other = network(2)
    other[0].requires_grad_(False)
    again = with_momentum(other)
    restored({"model": other, "optimizer": again}, storage)
    check_same(again.state_dict(), optimizer.state_dict())


def test_of_an_imported_part_everything_else_begins_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = network(1)
    storage = imported(model.state_dict(), tmp_path, "--part", "model")
    other = network(2)
    optimizer = with_two_groups(other)
    state: State = {
        "model": other,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "data": se.ElasticSampler(10, 2),
        "best": {"loss": 4.0},
    }
    capfd.readouterr()
    assert restored(state, storage) == 0
    resumes, told = capfd.readouterr().err.splitlines()
    assert resumes.startswith("spotelastic: resuming from step 0 in ")
    assert told == (
        "spotelastic: step 0 is an imported part of a state: "
        "optimizer, scheduler, data, best begin afresh"
    )
    check_same(other.state_dict(), model.state_dict())
    assert not optimizer.state and state["best"] == {"loss": 4.0}


def test_a_file_without_the_optimizer_is_refused_where_no_part_was_asked_for(
    tmp_path: Path,
) -> None:
    model = network(1)
    storage = imported({"model": model.state_dict()}, tmp_path)
    state = {"model": model, "optimizer": with_momentum(model)}
    with pytest.raises(UsageError, match=r"optimizer\..* missing from it"):
        restored(state, storage)


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    """Numbers and shapes may fit all the same."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    parameters = list(model.parameters())

    def grouped(first: int) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [{"params": parameters[:first]}, {"params": parameters[first:]}], lr=0.1, momentum=0.9
        )

    optimizer = grouped(2)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    storage = imported(saved, tmp_path)
    differs = r"optimizer\.param_groups\.0 has 2 parameters there and 1 here"
    with pytest.raises(UsageError, match=differs):
        restored({"model": model, "optimizer": grouped(1)}, storage)
    with pytest.raises(UsageError, match=r"it also holds optimizer\.param_groups\.1"):
        less = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        restored({"model": model, "optimizer": less}, storage)
