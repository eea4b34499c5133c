"""Fingerprints are equal where all is equal, and name what is not."""

import math
import random

import pytest
import torch
from torch import nn

from spotelastic.training.rehearsal.fingerprint import StepFingerprint, differences, take
from spotelastic.training.state.state import State


def made() -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer, "best": 0.5, "it": 3}
    step(state)
    return state


def step(state: dict[str, object]) -> None:
    model, optimizer = state["model"], state["optimizer"]
    assert isinstance(model, nn.Module) and isinstance(optimizer, torch.optim.Optimizer)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


def named(state: dict[str, object], before: StepFingerprint, loss: object = None) -> list[str]:
    return [each.name for each in differences(before, take(State(state), loss))]


def test_the_same_step_made_twice_is_equal() -> None:
    first, second = made(), made()
    assert differences(take(State(first), 1.5), take(State(second), 1.5)) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("state['model'][0].weight.data[0, 0] += 1e-7", "model.0.weight"),
        ("state['model'][1].running_mean.data.add_(1)", "model.1.running_mean"),
        ("state['model'][1].eval()", "model.1.training"),
        ("state['model'][2].requires_grad_(False)", "requires_grad of model.2.weight"),
        ("state['model'][0].weight.grad.mul_(2)", "gradient of model.0.weight"),
        ("state['model'].zero_grad()", "gradient of model.0.weight"),
        ("state['optimizer'].grad_scale = torch.ones(1)", "optimizer.grad_scale"),
        ("torch.rand(1)", "random numbers of torch"),
        ("state.update(best=0.4)", "best"),
    ],
)
def test_each_kind_of_change_is_named(change: str, name: str) -> None:
    state = made()
    before = take(State(state))
    exec(change)  # a line as a script has it
    assert name in named(state, before)


def test_a_difference_is_told_beside_what_the_step_has_changed() -> None:
    state = made()
    begin = take(State(state))
    step(state)
    first = take(State(state))
    weight = state["model"][0].weight  # type: ignore[index]
    start = begin.samples["model.0.weight"]
    moved = float(torch.linalg.vector_norm(first.samples["model.0.weight"] - start))
    with torch.no_grad():
        weight.view(-1)[0] += moved / 10
    [found] = differences(first, take(State(state)), begin)
    assert found.size is not None and math.isclose(found.size, 0.1, rel_tol=1e-3)


def test_values_are_shown_as_they_are_and_as_they_were() -> None:
    state = made()
    before = take(State(state))
    state["optimizer"].param_groups[0]["lr"] = 0.01  # type: ignore[attr-defined]
    [found] = differences(before, take(State(state)))
    assert str(found).endswith("is 0.01, was 0.1")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self._calls = nn.Linear(4, 1), 0
        self.seen, self.rng = [0.5], random.Random(0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("model._calls += 1", "model._calls"),
        ("model.seen.append(0.5)", "model.seen"),
        ("model.rng.random()", "model.rng"),
    ],
)
def test_what_a_module_of_the_scripts_own_keeps_is_compared(change: str, name: str) -> None:
    model = Counting()
    before = take(State({"model": model}))
    exec(change)  # a line as a script has it
    assert named({"model": model}, before) == [name]


def test_gradients_that_no_optimizer_reads_are_not_compared() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    state: dict[str, object] = {"model": model, "optimizer": torch.optim.SGD(model[1].parameters())}
    before = take(State(state))
    model[0].weight.grad = torch.ones(8, 4)
    assert named(state, before) == []
    model[1].weight.grad = torch.ones(1, 8)
    assert named(state, before) == ["gradient of model.1.weight"]
