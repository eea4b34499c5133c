"""A run with dropout and a DataLoader that is interrupted in mid-epoch equals one that is not."""

from pathlib import Path

import pytest
import torch
from support.draws import soaked
from torch import nn
from torch.utils.data import DataLoader

import spotelastic as se

ROWS, BATCH, STEPS = 20, 4, 13
"""Five steps are an epoch."""


class Run:
    def __init__(self, seed: int, workers: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.sampler = se.ElasticSampler(ROWS, BATCH, seed=3)
        rows = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
        self.loader: DataLoader[torch.Tensor] = DataLoader(
            rows,  # type: ignore[arg-type]
            batch_sampler=self.sampler,
            num_workers=workers,
        )

    def train(self, storage: Path, last: int) -> list[torch.Tensor]:
        """Its losses."""
        state = {"model": self.model, "optimizer": self.optimizer, "data": self.sampler}
        losses = []
        with se.Checkpointer(state, storage=str(storage)) as checkpoint:
            step = checkpoint.restore()
            while step < last:
                for rows in self.loader:
                    loss = self.model(rows).square().mean()
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    losses.append(loss.detach())
                    step += 1
                    checkpoint.step(step)
                    if step == last:
                        break
        return losses


@pytest.mark.parametrize("workers", [2, *soaked([0])])
def test_a_run_that_resumes_in_mid_epoch_has_the_losses_of_one_that_was_not_interrupted(
    workers: int, tmp_path: Path
) -> None:
    whole, losses = Run(0, workers), []
    expected = whole.train(tmp_path / "whole", STEPS)
    # In the middle of an epoch twice, and between two.
    for seed, last in enumerate((3, 4, 10, STEPS)):
        run = Run(seed, workers)
        losses += run.train(tmp_path / "parts", last)
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    for found, wanted in zip(run.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_only_the_first_batch_after_a_restore_undoes_what_was_drawn() -> None:
    sampler = se.ElasticSampler(ROWS, BATCH)
    sampler.advance()
    sampler.load_state_dict(sampler.state_dict())
    known = torch.get_rng_state()
    batches = iter(sampler)
    torch.rand(1)
    next(batches)
    assert torch.equal(torch.get_rng_state(), known)
    torch.rand(1)
    drawn = torch.get_rng_state()
    next(batches)
    next(iter(sampler))
    assert torch.equal(torch.get_rng_state(), drawn)


def test_what_a_step_has_drawn_is_not_undone() -> None:
    """Its data came from elsewhere."""
    sampler = se.ElasticSampler(ROWS, BATCH)
    sampler.advance()
    sampler.load_state_dict(sampler.state_dict())
    batches = iter(sampler)
    torch.rand(1)
    sampler.advance()
    drawn = torch.get_rng_state()
    next(batches)
    assert torch.equal(torch.get_rng_state(), drawn)
