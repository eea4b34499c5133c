"""A LightningModule under lightning.Trainer, with Lightning's own checkpoints.

It knows nothing of spotelastic. torchrun --nproc-per-node 2 tests/programs/lightning_module.py
"""

import os
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from milestones import finished, reached
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 5, 8


class Autoencoder(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 16))

    def training_step(self, batch, batch_idx):
        reached(self.global_step)
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)]


def main() -> None:
    L.seed_everything(0)
    data = TensorDataset(torch.randn(64, 16))
    model = Autoencoder()
    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=local,
        num_nodes=world // local,
        strategy="ddp",
        callbacks=[ModelCheckpoint("lightning", save_last=True, every_n_epochs=1)],
        logger=False,
        enable_progress_bar=False,
    )
    last = Path("lightning/last.ckpt")
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    trainer.fit(model, loader, ckpt_path=last if last.exists() else None)
    finished(model.parameters())


if __name__ == "__main__":
    main()
