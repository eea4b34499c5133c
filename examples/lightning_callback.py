"""Trains under Lightning with one callback, and validates after each epoch.

    spotelastic run --standalone --nproc-per-node 2 examples/lightning_callback.py

The loader has an ElasticSampler. `workers()` tells the Trainer of all workers that the launcher has
started, and switches its own samplers and checkpoints off.
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se
from spotelastic.integrations.lightning import ElasticCallback, workers


class Regression(L.LightningModule):
    def __init__(self, elastic: ElasticCallback) -> None:
        super().__init__()
        self.elastic = elastic
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss_of(self, batch: list[torch.Tensor]) -> torch.Tensor:
        rows, targets = batch
        return (self.layers(rows).squeeze(1) - targets).square().mean()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        # The gradient is averaged over ranks, whose shares of a batch may differ.
        loss = self.loss_of(batch) * self.elastic.weight
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("val_loss", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def samples(count: int) -> TensorDataset:
    rows = torch.randn(count, 8)
    return TensorDataset(rows, rows.sum(1))


def main() -> None:
    torch.manual_seed(0)
    train, held_out = samples(256), samples(64)
    sampler = se.ElasticSampler(train, global_batch=24)
    elastic = ElasticCallback(sampler)
    trainer = L.Trainer(
        **workers(),
        max_epochs=20,
        callbacks=[elastic],
        enable_progress_bar=False,
        logger=False,
    )
    loader = DataLoader(train, batch_sampler=sampler)
    trainer.fit(Regression(elastic), loader, DataLoader(held_out, 64))


if __name__ == "__main__":
    main()
