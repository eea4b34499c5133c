"""lightning.Trainer with the plug-in, with accumulated batches and validations.

torchrun --nproc-per-node 2 tests/programs/lightning_elastic.py
"""

import lightning as L
import torch
from milestones import finished, reached
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se
from spotelastic.integrations.lightning import ElasticCallback, workers

EPOCHS, BATCH = 3, 6


class Classifier(L.LightningModule):
    def __init__(self, elastic: ElasticCallback) -> None:
        super().__init__()
        self.elastic = elastic
        self.layers = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 3))

    def loss_of(self, batch):
        rows, labels = batch
        return nn.functional.cross_entropy(self.layers(rows), labels)

    def training_step(self, batch, _):
        reached(self.global_step)
        return self.loss_of(batch) * self.elastic.weight

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss_of(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": "epoch"}]


class Validations(L.Callback):
    """Has state of its own."""

    def __init__(self) -> None:
        self.found = []

    def on_validation_end(self, trainer, module) -> None:
        if not trainer.sanity_checking:
            loss = trainer.callback_metrics["val_loss"].item()
            self.found.append([trainer.current_epoch, trainer.global_step, loss])

    def state_dict(self):
        return {"found": self.found}

    def load_state_dict(self, state):
        self.found = state["found"]


def main(kind: type[Classifier] = Classifier, **more) -> None:
    torch.manual_seed(0)
    rows = torch.randn(100, 8)
    data = TensorDataset(rows, rows[:, :3].argmax(1))
    sampler = se.ElasticSampler(data, BATCH, drop_last=True)
    elastic, validations = ElasticCallback(sampler), Validations()
    trainer = L.Trainer(
        **{**workers(), "accelerator": "cpu", **more},
        max_epochs=EPOCHS,
        accumulate_grad_batches=2,
        val_check_interval=6,
        callbacks=[elastic, validations],
        enable_progress_bar=False,
        logger=False,
    )
    module = kind(elastic)
    trainer.fit(module, DataLoader(data, batch_sampler=sampler), DataLoader(data, 50))
    finished(module.parameters(), [validations.found, trainer.current_epoch, trainer.global_step])


if __name__ == "__main__":
    main()
