"""What a parameter server is given, and which rank does what."""

from typing import Any

import pytest
import torch
from torch import nn

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.parameter_server import vectors
from spotelastic.training.parameter_server.served_state import Label
from spotelastic.training.parameter_server.server import newest_of, standby_of


def served(model: nn.Module, **options: Any) -> se.parameter_server.ParameterServer:
    optimizer = torch.optim.SGD([*model.parameters(), torch.zeros(1)], lr=0.1)
    return se.parameter_server.ParameterServer(
        model, optimizer, lambda model, _: model(torch.ones(1, 2)), **options
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "eager"}, "mode='eager': it is synchronous, bounded or asynchronous"),
        ({"updates": 0}, "updates=0"),
        ({"mode": "bounded"}, "staleness=None"),
        ({"mode": "bounded", "staleness": -1}, "staleness=-1"),
        ({"staleness": 3}, "staleness=3"),
        ({"mode": "asynchronous", "batches": 2}, "batches=2"),
        ({"batches": 0}, "batches=0"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        served(nn.Linear(2, 2), **options)


def test_statistics_that_would_stay_on_the_workers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"1 keeps running statistics.*GroupNorm"):
        served(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    served(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameter that is trained"):
        served(nn.ReLU())


@pytest.mark.parametrize(
    ("nodes", "standby"),
    [((1,), None), ((1, 2), None), ((1, 2, 3), 1), ((1, 1, 2, 2), 2), ((1, 1, 1), 1)],
)
def test_the_standby_is_on_another_node_than_the_server(
    nodes: tuple[int, ...], standby: int | None
) -> None:
    assert standby_of(nodes) == standby


def test_the_newest_copy_lives_is_of_the_last_attempt_and_has_most_updates() -> None:
    saved = Label(False, 9, 900)
    old, behind, newest = Label(True, 4, 80), Label(True, 5, 70), Label(True, 5, 71)
    assert newest_of([saved, old, behind, newest, newest]) == 3
    assert newest_of([old, saved]) == 0
    assert newest_of([saved, saved]) == 0


def test_what_is_sent_is_what_there_was() -> None:
    model = nn.Sequential(nn.Linear(3, 2).double(), nn.Linear(2, 1).bfloat16())
    model[1].bias.requires_grad_(False)
    before = [each.detach().clone() for each in model.parameters()]
    vector = vectors.of_parameters(model)
    assert (vector.dtype, vector.numel()) == (torch.float64, 3 * 2 + 2 + 2 + 1)
    with torch.no_grad():
        for each in vectors.trained(model):
            each.fill_(7.0)
    vectors.put(vector, model)
    assert all(map(torch.equal, model.parameters(), before))
