"""An attempt at a step that does not count leaves no trace."""

import copy
import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import spotelastic as se
from spotelastic.training.in_place.undo import MANY, SMALL, Undo
from spotelastic.training.state.state import State


class Position:
    """An object with state of its own."""

    def __init__(self) -> None:
        self.seen = [0]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def made() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        "scaler": torch.amp.GradScaler("cpu"),
        "data": se.ElasticSampler(64, 8),
        "position": Position(),
        "best": 1.0,
        "history": [1, {"a": torch.zeros(2)}],
    }


def attempt(state: dict[str, Any]) -> torch.Tensor:
    """What comes before the optimizer's step, and more than that."""
    state["data"].advance()
    state["position"].seen.append(1)
    state["best"] = 0.5
    state["history"][1]["a"] += 1
    state["history"].append(2)
    rows = torch.randn(6, 4) + random.random() + np.random.rand()
    loss: torch.Tensor = state["model"](rows).square().mean()
    state["scaler"].scale(loss).backward()
    state["scaler"].unscale_(state["optimizer"])
    state["scheduler"].last_epoch += 1
    state["optimizer"].param_groups[0]["lr"] *= 3
    return loss.detach()


def content(state: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: value.state_dict() if hasattr(value, "state_dict") else value
        for name, value in state.items()
    }
    return copy.deepcopy(found)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def stepped(state: dict[str, Any]) -> None:
    state["scaler"].step(state["optimizer"])
    state["scaler"].update()
    state["optimizer"].zero_grad()


def test_an_attempt_leaves_no_trace_and_can_be_made_again() -> None:
    state, uninterrupted = made(), made()
    for each in state, uninterrupted:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(1)
        attempt(each)
        stepped(each)
        if each is state:
            undo, history = Undo(State(state)), state["history"]
            before = content(state)
            for _ in range(2):
                undo.note()
                attempt(state)
                assert not same(content(state), before)
                assert not undo.problem
                undo.put_back()
                assert same(content(state), before)
            assert state["history"] is history
            assert all(parameter.grad is None for parameter in state["model"].parameters())
            undo.note()
        attempt(each)
        stepped(each)
    assert same(content(state), content(uninterrupted))


def test_gradients_that_were_there_are_zeros() -> None:
    """As `zero_grad(set_to_none=False)` leaves them: weights decay where there is a zero."""
    state = made()
    attempt(state)
    stepped(state)
    weight = state["model"][0].weight
    weight.grad = torch.zeros_like(weight)
    undo = Undo(State(state))
    undo.note()
    weight.grad += 1
    state["model"][3].weight.grad = torch.ones(1, 8)
    assert not undo.problem
    undo.put_back()
    assert weight.grad is not None and not weight.grad.any()
    assert state["model"][3].weight.grad is None


def change_a_parameter(state: dict[str, Any]) -> None:
    with torch.no_grad():
        state["model"][0].weight.mul_(2)


def change_data(state: dict[str, Any]) -> None:
    for parameter in state["model"].parameters():
        parameter.data -= 0.1


def change_a_moment(state: dict[str, Any]) -> None:
    for own in state["optimizer"].state.values():
        own["exp_avg"].mul_(0.5)


def change_what_is_large(state: dict[str, Any]) -> None:
    state["large"].add_(1)


def change_within(state: dict[str, Any]) -> None:
    state["kept"]["moment"].add_(1)


def replace_a_large_buffer(state: dict[str, Any]) -> None:
    state["model"].mask = torch.ones_like(state["model"].mask)


def nothing(state: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        (nothing, True),
        (change_a_parameter, False),
        (change_data, False),
        (change_a_moment, False),
        (change_what_is_large, False),
        (change_within, False),
        (replace_a_large_buffer, False),
    ],
)
def test_what_cannot_be_undone_is_noticed(change: Any, exact: bool) -> None:
    state = made()
    state["large"] = torch.zeros(SMALL)
    state["kept"] = {"moment": torch.zeros(SMALL)}
    state["model"](torch.randn(6, 4)).sum().backward()
    state["optimizer"].step()
    state["model"].register_buffer("mask", torch.zeros(SMALL))
    undo = Undo(State(state))
    undo.note()
    change(state)
    assert (not undo.problem) is exact


def test_values_of_many_parts_cannot_be_undone() -> None:
    state: dict[str, Any] = {"history": [0.0] * MANY}
    undo = Undo(State(state))
    undo.note()
    assert undo.problem


def test_buffers_that_were_replaced_are_put_back() -> None:
    model = nn.BatchNorm1d(4)
    undo, mean = Undo(State({"model": model})), model.running_mean
    undo.note()
    model.running_mean = torch.ones(4)
    assert not undo.problem
    undo.put_back()
    assert model.running_mean is mean


def test_gradients_carried_from_step_to_step_cannot_be_undone() -> None:
    state = made()
    undo = Undo(State(state))
    undo.note()
    state["model"](torch.ones(2, 4)).sum().backward()
    undo.finished(set())
    undo.note()
    assert undo.problem
    undo.note()
    attempt(state)
    stepped(state)
    undo.finished({id(state["optimizer"])})
    undo.note()
    assert not undo.problem
    undo.put_back()


def test_what_comes_in_an_attempt_goes_with_it() -> None:
    """Parts, parameters, buffers, hooks, attributes and groups."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model.register_buffer("mean", None)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    undo = Undo(State({"model": model, "optimizer": optimizer}))
    before, names = {**vars(model[0])}, [*model.state_dict()]
    for _ in range(2):
        undo.note()
        prune.random_unstructured(model[0], "weight", 0.5)
        model.mean = torch.zeros(4)
        model.adapter = nn.Linear(4, 4)
        optimizer.add_param_group({"params": [*model[1].parameters()]})
        assert not undo.problem
        undo.put_back()
        assert vars(model[0]).keys() == before.keys() and [*model.state_dict()] == names
        assert not model[0]._forward_pre_hooks and len(optimizer.param_groups) == 1
        assert model.mean is None and model(torch.ones(1, 4)).shape == (1, 1)


def test_a_small_tensor_of_the_state_is_put_back_in_place() -> None:
    state = {"mean": torch.zeros(4)}
    undo = Undo(State(state))
    mean = state["mean"]
    undo.note()
    mean += 1
    assert not undo.problem
    undo.put_back()
    assert state["mean"] is mean and not mean.any()


def test_sparse_buffers_are_watched() -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("adjacent", torch.eye(4).to_sparse())
    model.register_buffer("rows", torch.eye(4).to_sparse_csr())
    undo = Undo(State({"model": model}))
    undo.note()
    assert not undo.problem
    undo.put_back()
    assert model.adjacent.layout is torch.sparse_coo


def test_what_variables_hold_too_is_put_back_in_place_of_what_a_step_makes() -> None:
    whole = torch.ones(2, requires_grad=True)
    state: dict[str, Any] = {
        "mean": torch.zeros(2),
        "large": torch.zeros(SMALL),
        "seen": {1},
        "total": np.zeros(2),
        "inner": {"recent": deque([1, 2], maxlen=2), "whole": [whole]},
        "optimizer": torch.optim.SGD([whole], lr=0.1),
    }
    held, recent = {**state}, state["inner"]["recent"]
    undo = Undo(State(state))
    for _ in range(2):
        undo.note()
        state["seen"].add(2)
        state["total"] += 1
        recent.append(3)
        state |= {name: state[name] + 1 for name in ("mean", "large")} | {"new": 1}
        assert not undo.problem
        undo.put_back()
        assert [*state] == [*held] and all(state[name] is held[name] for name in held)
        assert state["inner"]["recent"] is recent and recent == deque([1, 2], maxlen=2)
        assert state["inner"]["whole"][0] is whole and whole.requires_grad
        assert state["seen"] == {1} and not state["total"].any()
        assert not state["mean"].any() and not state["large"].any()
