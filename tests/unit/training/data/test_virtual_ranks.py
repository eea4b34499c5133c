"""What an `ElasticSampler` with virtual ranks deals out, and what it refuses."""

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.data import randomness
from spotelastic.training.data.sampler import SeededRows


class Draws(Dataset[list[float]]):
    def __getitem__(self, row: int) -> list[float]:
        return [row, torch.rand(()).item(), random.random(), float(np.random.rand())]

    def __len__(self) -> int:
        return 8


def loaded(rows: SeededRows, workers: int) -> list[list[float]]:
    loader = DataLoader(Draws(), batch_sampler=[rows], num_workers=workers, collate_fn=list)
    [found] = loader
    return found


def test_a_sample_draws_the_same_in_any_batch_and_any_process() -> None:
    alone = [loaded(SeededRows([row], 3, 1), 0)[0] for row in (5, 2)]
    before = torch.get_rng_state(), random.getstate()
    assert loaded(SeededRows([5, 2], 3, 1), 0) == alone
    assert random.getstate() == before[1]  # torch's own loader draws a seed for its workers
    assert loaded(SeededRows([5, 2], 3, 1), 1) == alone
    assert loaded(pickle.loads(pickle.dumps(SeededRows([5, 2], 3, 1))), 0) == alone
    assert loaded(SeededRows([5, 2], 3, 2), 0) != alone


def test_generators_are_seeded_alike_however_often() -> None:
    randomness.derive(1, "a", 2)
    drawn = torch.rand(()), random.random(), np.random.rand()
    randomness.derive(1, "a", 2, often=True)
    assert (torch.rand(()), random.random(), np.random.rand()) == drawn


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"virtual_ranks": 0}, "virtual_ranks=0 is not between 1 and 6"),
        ({"virtual_ranks": 7}, "virtual_ranks=7 is not between 1 and 6"),
        ({"virtual_ranks": 2, "rank": 0, "world_size": 1}, "leave rank and world_size out"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        se.ElasticSampler(30, 6, **more)


def test_another_number_of_virtual_ranks_is_refused_when_a_state_is_loaded() -> None:
    saved = se.ElasticSampler(30, 6, virtual_ranks=3).state_dict()
    se.ElasticSampler(30, 6, virtual_ranks=3).load_state_dict(saved)
    for other in (2, None):
        with pytest.raises(UsageError, match="saved with virtual_ranks=3"):
            se.ElasticSampler(30, 6, virtual_ranks=other).load_state_dict(saved)
    before = se.ElasticSampler(30, 6).state_dict()
    se.ElasticSampler(30, 6, virtual_ranks=3).load_state_dict(before)


def test_pieces_belong_into_a_step() -> None:
    with pytest.raises(UsageError, match=r"within a step of checkpoint\.steps\(\)"):
        se.ElasticSampler(30, 6, virtual_ranks=3).microbatches()


def trains(folder: Any, model: nn.Module, block: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sampler = se.ElasticSampler(30, 6, virtual_ranks=3)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    with se.Checkpointer(state, storage=str(folder), rehearse=False) as checkpoint:
        for step in checkpoint.steps(1):
            with step:
                block(sampler, model)
                optimizer.step()


def all_pieces(sampler: se.ElasticSampler, model: nn.Module) -> None:
    for micro in sampler.microbatches():
        (model(torch.ones(2, 4)).sum() * micro.weight).backward()


def no_piece(sampler: se.ElasticSampler, model: nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def the_first_piece(sampler: se.ElasticSampler, model: nn.Module) -> None:
    for _ in sampler.microbatches():
        model(torch.ones(2, 4)).sum().backward()
        break


def two_passes(sampler: se.ElasticSampler, model: nn.Module) -> None:
    for _ in sampler.microbatches():
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()


class Counts(nn.Linear):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen += rows.sum()
        return super().forward(rows)


@pytest.mark.parametrize(
    ("model", "block", "told"),
    [
        (nn.Linear(4, 1), no_piece, "without all virtual ranks' gradients"),
        (nn.Linear(4, 1), the_first_piece, "leave that loop at its end only"),
        (nn.Linear(4, 1), two_passes, "a second backward pass in one turn"),
        (Counts(), all_pieces, "Counts changes its buffer seen in the forward pass"),
        (nn.SyncBatchNorm(4), all_pieces, "SyncBatchNorm waits for the other ranks"),
        (nn.Sequential(nn.Embedding(3, 4, sparse=True)), None, "a gradient is sparse"),
    ],
)
def test_what_would_depend_on_the_number_of_ranks_is_refused(
    tmp_path: Any, model: nn.Module, block: Any, told: str
) -> None:
    def of_words(sampler: se.ElasticSampler, model: nn.Module) -> None:
        for micro in sampler.microbatches():
            (model(torch.ones(2, dtype=torch.long)).sum() * micro.weight).backward()

    with pytest.raises(UsageError, match=told):
        trains(tmp_path, model, block or of_words)


def test_what_is_not_refused_trains(tmp_path: Any) -> None:
    model = nn.Linear(4, 1)
    before = model.weight.detach().clone()
    trains(tmp_path, model, all_pieces)
    assert torch.equal(model.weight, before - 0.2)
