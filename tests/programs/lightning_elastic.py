"""lightning.Trainer with examples/lightning_callback.py: spotelastic keeps its state.

torchrun --nproc-per-node 2 tests/programs/lightning_elastic.py
"""

import sys
from pathlib import Path

import lightning as L
import torch
from milestones import finished, reached
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se

sys.path.append(str(Path(__file__).parent.parent.parent / "examples"))
from lightning_callback import Elastic, workers

STEPS, BATCH = 20, 16


class Classifier(L.LightningModule):
    def __init__(self, sampler: se.ElasticSampler) -> None:
        super().__init__()
        self.sampler = sampler
        self.layers = nn.Sequential(
            nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3)
        )

    def training_step(self, batch, _):
        reached(self.global_step)
        rows, labels = batch
        loss = nn.functional.cross_entropy(self.layers(rows), labels)
        return loss * se.microbatches(self.sampler.batch)[0].weight

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS + 1)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main() -> None:
    torch.manual_seed(0)
    rows = torch.randn(100, 8)
    data = TensorDataset(rows, rows[:, :3].argmax(1))
    sampler = se.ElasticSampler(data, BATCH)
    module = Classifier(sampler)
    trainer = L.Trainer(
        **workers(),
        accelerator="cpu",
        max_steps=STEPS,
        callbacks=[Elastic(sampler)],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(module, DataLoader(data, batch_sampler=sampler))
    finished(module.parameters())


if __name__ == "__main__":
    main()
