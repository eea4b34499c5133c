"""Every sample once per epoch whatever the ranks were, and a global batch that stays."""

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import drawn
from torch.utils.data import DataLoader

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.data.sampler import Permutation, names_ranks


@given(st.integers(1, 700), st.integers(0, 2**63), st.integers(0, 10))
def test_a_permutation_has_every_element_once_and_is_the_same_each_time(
    size: int, seed: int, epoch: int
) -> None:
    everywhere = Permutation(size, seed, epoch)(np.arange(size))
    assert sorted(everywhere) == list(range(size))
    somewhere = np.array([size - 1, 0, size // 2])
    assert (Permutation(size, seed, epoch)(somewhere) == everywhere[somewhere]).all()


@pytest.mark.parametrize("size", [5, 12, 1000])
def test_permutations_spread_elements_evenly(size: int) -> None:
    """Chi-squared over where the first element goes, well beyond what chance would give."""
    cells = min(size, 20)
    found = [int(Permutation(size, seed, 0)(np.array([0]))[0]) for seed in range(1000)]
    counts = np.bincount([value * cells // size for value in found], minlength=cells)
    widths = np.bincount([value * cells // size for value in range(size)], minlength=cells)
    expected = 1000 * widths / size
    assert ((counts - expected) ** 2 / expected).sum() < 3 * cells + 30


def test_a_permutation_of_a_huge_size_costs_nothing() -> None:
    found = Permutation(10**15, 1, 0)(np.arange(10**15 - 1000, 10**15))
    assert len(set(found.tolist())) == 1000
    assert 0 <= found.min() < found.max() < 10**15


resizes = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=drawn(40))
@given(
    st.integers(1, 90), st.integers(1, 24), resizes, st.integers(0, 4), st.booleans(), st.booleans()
)
def test_every_sample_comes_once_per_epoch_over_any_resizes(
    size: int,
    batch: int,
    worlds: list[tuple[int, int]],
    prefetched: int,
    drop_last: bool,
    shuffle: bool,
) -> None:
    usable = size - size % batch if drop_last else size
    if not usable:
        with pytest.raises(UsageError):
            se.ElasticSampler(size, batch, drop_last=drop_last)
        return
    seen: dict[int, Counter[int]] = {}
    state: dict[str, Any] | None = None
    for world, steps in [*worlds, (1, 2 * size)]:
        ranks = [
            se.ElasticSampler(
                size, batch, seed=3, shuffle=shuffle, drop_last=drop_last, rank=r, world_size=world
            )
            for r in range(world)
        ]
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(state)
        for _ in range(steps):
            epoch, total = ranks[0].epoch, ranks[0].batch
            for rank, sampler in enumerate(ranks):
                share, *_ = list(islice(sampler, 1 + prefetched))
                for micro in se.microbatches(total, 3, rank=rank, world_size=world):
                    rows = share[micro.rows]
                    assert rows
                    if micro.weight:
                        seen.setdefault(epoch, Counter()).update(rows)
            for sampler in ranks:
                sampler.advance()
        states = [sampler.state_dict() for sampler in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert state is not None
    for epoch in range(state["epoch"]):
        assert set(seen[epoch].values()) == {1}, "a sample came twice"
        assert len(seen[epoch]) == usable


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 9))
def test_weighted_pieces_average_to_the_mean_over_the_global_batch(
    total: int, world: int, most: int
) -> None:
    torch.manual_seed(total)
    rows, target = torch.randn(total, 5, dtype=torch.float64), torch.randn(total).double()
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def gradient(part: Any) -> torch.Tensor:
        loss = (rows[part] @ weight - target[part]).square().mean()
        return torch.autograd.grad(loss, weight)[0]

    averaged = torch.zeros(5, dtype=torch.float64)
    for rank in range(world):
        share = list(range(rank, total, world)) or [0]
        pieces = se.microbatches(total, most, rank=rank, world_size=world)
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        for piece in pieces:
            assert len(share[piece.rows]) <= most
            averaged += gradient(share[piece.rows]) * piece.weight / world
    assert torch.allclose(averaged, gradient(slice(None)), rtol=1e-10, atol=1e-12)


def test_a_loader_that_is_ahead_of_the_loop_loses_nothing() -> None:
    data: Any = torch.arange(40)
    sampler = se.ElasticSampler(data, 4, seed=1)
    loader: DataLoader[torch.Tensor] = DataLoader(
        data, batch_sampler=sampler, num_workers=1, prefetch_factor=4
    )
    first = []
    for batch in loader:
        first += batch.tolist()
        sampler.advance()
        if len(first) == 12:
            break
    again = se.ElasticSampler(data, 4)
    again.load_state_dict(sampler.state_dict())
    rest = [int(x) for batch in DataLoader(data, batch_sampler=again) for x in batch]
    assert sorted(first + rest) == list(range(40))
    assert len(loader) == 10


def test_an_epoch_does_not_go_on_with_other_data() -> None:
    sampler = se.ElasticSampler(10, 4)
    sampler.advance()
    with pytest.raises(UsageError, match="has 11 samples, but had 10"):
        se.ElasticSampler(11, 4).load_state_dict(sampler.state_dict())
    sampler.set_epoch(0)
    assert sampler.consumed == 4
    sampler.set_epoch(1)
    assert (sampler.epoch, sampler.consumed) == (1, 0)
    larger = se.ElasticSampler(11, 4)
    larger.load_state_dict(sampler.state_dict())
    assert larger.epoch == 1


def test_a_sampler_asks_functions_for_its_ranks_at_each_pass() -> None:
    place = [0, 1]
    sampler = se.ElasticSampler(
        8, 8, shuffle=False, rank=lambda: place[0], world_size=lambda: place[1]
    )
    assert not names_ranks(sampler)
    assert next(iter(sampler)) == [*range(8)]
    place[:] = 1, 4
    assert next(iter(sampler)) == [1, 5]
    assert names_ranks(se.ElasticSampler(8, 8, rank=0, world_size=1))
