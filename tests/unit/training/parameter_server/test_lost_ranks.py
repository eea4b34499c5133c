"""Ranks of a parameter server are lost at any message: what was acknowledged stays."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import drawn
from support.training.served_parameters import ServedCluster
from torch import nn

from spotelastic.training.parameter_server.order import Mode, Rules
from spotelastic.training.parameter_server.served_state import ServedState

UPDATES, WINDOWS = 6, 3
RULES = {
    "synchronous": Rules("synchronous", 4),
    "bounded": Rules("bounded", 1, 2),
    "asynchronous": Rules("asynchronous"),
}


def cluster(mode: Mode, ranks: int) -> ServedCluster:
    """A cluster whose model has a number for each batch, to which the batch's update adds 1."""
    rules = RULES[mode]

    def make() -> ServedState:
        model = nn.ParameterDict({"marks": torch.zeros(UPDATES * WINDOWS * rules.batches)})
        return ServedState(model, torch.optim.SGD(model.parameters(), lr=float(rules.batches)))

    def loss_of(model: nn.Module, batch: int) -> torch.Tensor:
        assert isinstance(model, nn.ParameterDict)
        return -model["marks"][batch]

    made = ServedCluster(rules, make, loss_of, UPDATES)
    for _ in range(ranks):
        made.comes()
    return made


def marks(state: ServedState) -> list[float]:
    found: list[float] = state.model.get_parameter("marks").tolist()
    return found


def newest(found: ServedCluster) -> list[float]:
    """The copy that the ranks that are left go on from."""
    found.agrees()
    return marks(found.ranks[0].state)


def finish(found: ServedCluster) -> None:
    while found.windows < WINDOWS:
        assert found.attempt()
    for each in found.ranks:
        assert marks(each.state) == [1.0] * len(marks(each.state))


LOSSES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 60), st.booleans(), st.booleans(), st.integers()),
    max_size=5,
)
"""Of each: the rank, after how many of its messages, whether what it had sent arrives, whether a
node comes, and a seed of the next round's ranks. Drawn first: threads are not as determined."""


@pytest.mark.parametrize("mode", RULES)
@given(st.integers(3, 5), LOSSES)
@settings(max_examples=drawn(30))
def test_no_acknowledged_update_is_lost_with_a_rank(
    mode: Mode, ranks: int, losses: list[tuple[int, int, bool, bool, int]]
) -> None:
    found = cluster(mode, ranks)
    for rank, after, delivers, comes, seed in losses:
        if found.windows == WINDOWS:
            break
        world = len(found.ranks)  # of two, none is the other one's standby
        found.attempt([rank % world] if world > 2 else [], after, delivers=delivers)
        kept = newest(found)
        assert {*kept} <= {0.0, 1.0}
        assert all(kept[batch] == 1.0 for batch in found.acknowledged)
        if comes:
            found.comes()
        random.Random(seed).shuffle(found.ranks)
    finish(found)
    assert len(found.acknowledged) == len({*found.acknowledged})


@pytest.mark.parametrize("mode", RULES)
@pytest.mark.parametrize("after", range(0, 40, 3))
def test_when_server_and_standby_are_lost_the_window_is_made_again(mode: Mode, after: int) -> None:
    found = cluster(mode, 5)
    assert found.attempt()
    before = newest(found)
    assert not found.attempt([0, 1], after)
    assert newest(found) == before
    finish(found)


@pytest.mark.parametrize("mode", RULES)
def test_a_window_goes_on_with_a_single_rank(mode: Mode) -> None:
    found = cluster(mode, 3)
    assert not found.attempt([0], 12)
    assert not found.attempt([1], 12)
    assert len(found.ranks) == 1
    finish(found)


def test_a_server_that_comes_back_does_not_count() -> None:
    """It had made an update that nobody knew of, and others were made without it."""
    found = cluster("asynchronous", 4)
    stale = found.ranks[0]
    assert not found.attempt([0], 11)
    assert not found.attempt([2], 1)
    made = newest(found)
    while stale.state.applied.version <= found.ranks[0].state.applied.version:
        stale.state.apply(torch.ones(len(made) + 1), [stale.state.applied.first])
    found.ranks.insert(0, stale)
    assert newest(found) == made
    assert marks(stale.state) == made
    finish(found)


def test_what_this_process_has_is_not_replaced_by_a_save() -> None:
    found = cluster("asynchronous", 3)
    assert found.attempt()
    assert not found.attempt([2], 9)
    kept = newest(found)
    assert found.saved is not None
    found.ranks[0].state.load_state_dict(found.saved)
    assert marks(found.ranks[0].state) == kept
    found.comes()
    assert marks(found.ranks[-1].state) != kept
    finish(found)


def _trained(ranks: int, losses: list[tuple[int, int]]) -> list[torch.Tensor]:
    """The parameters that a small model ends with, whose ranks are lost so."""

    def make() -> ServedState:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
        return ServedState(model, optimizer, schedule)

    def loss_of(model: nn.Module, batch: int) -> torch.Tensor:
        rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(batch))
        found: torch.Tensor = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
        return found

    found = ServedCluster(RULES["synchronous"], make, loss_of, UPDATES)
    for _ in range(ranks):
        found.comes()
    for rank, after in losses:
        found.attempt([rank], after)
        found.comes()
    while found.windows < WINDOWS:
        assert found.attempt()
    return [each.detach() for each in found.ranks[0].state.model.parameters()]


@given(st.integers(3, 6), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=3))
@settings(max_examples=drawn(8))
def test_synchronous_parameters_are_the_same_bit_for_bit(
    ranks: int, losses: list[tuple[int, int]]
) -> None:
    """With any number of workers, and whoever is lost."""
    alone = _trained(1, [])
    assert all(map(torch.equal, _trained(ranks, losses), alone))
