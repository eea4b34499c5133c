"""Trains under Lightning with one callback.

    spotelastic run --standalone --nproc-per-node 2 examples/lightning_callback.py

Give the loader an ElasticSampler, let `max_steps` end training, and switch Lightning's own
checkpoints and samplers off. `workers()` tells the Trainer of all workers that the launcher has
started. Without a GPU it would otherwise take each for a job of its own.
"""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se


class Elastic(L.Callback):
    """Restores when training starts, and saves when due."""

    def __init__(self, data: se.ElasticSampler, **options) -> None:
        self.data = data
        self.options = options
        self.checkpoint = None
        self.step = 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        values = {"model": module, "data": self.data}
        for number, optimizer in enumerate(trainer.optimizers):
            values[f"optimizer_{number}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            values[f"scheduler_{number}"] = config.scheduler
        self.checkpoint = se.Checkpointer(values, **self.options).__enter__()
        self.step = self.checkpoint.restore()
        # trainer.global_step and max_steps go by this counter.
        progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress
        progress.optimizer.step.total.completed = self.step

    def on_train_batch_end(self, trainer: L.Trainer, *_) -> None:
        # With accumulate_grad_batches, the optimizer has not stepped yet.
        if trainer.global_step == self.step:
            self.data.advance()
            return
        self.step = trainer.global_step
        self.checkpoint.step(trainer.global_step, loss=trainer.callback_metrics.get("loss"))

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.leave()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, error: BaseException):
        self.leave(error)

    def leave(self, error: BaseException | None = None) -> None:
        """Close the Checkpointer, if training got as far as opening it.

        Until then no other can be opened.
        """
        checkpoint, self.checkpoint = self.checkpoint, None
        if checkpoint is not None:
            checkpoint.__exit__(type(error) if error else None, error, None)


def workers() -> dict[str, object]:
    """Return the Trainer's arguments for all workers: as many on each node, in one group."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if world % local:
        raise RuntimeError("Lightning needs the same number of workers on every node")
    return {
        "devices": local,
        "num_nodes": world // local,
        "strategy": "ddp" if world > 1 else "auto",
    }


class Regression(L.LightningModule):
    def __init__(self, sampler: se.ElasticSampler) -> None:
        super().__init__()
        self.sampler = sampler
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        rows, targets = batch
        loss = (self.layers(rows).squeeze(1) - targets).square().mean()
        # The gradient is averaged over ranks, whose shares of a batch may differ.
        loss = loss * se.microbatches(self.sampler.batch)[0].weight
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main(steps: int = 200, storage: str | None = None) -> Regression:
    torch.manual_seed(0)
    rows = torch.randn(256, 8)
    dataset = TensorDataset(rows, rows.sum(1))
    sampler = se.ElasticSampler(dataset, global_batch=24)
    module = Regression(sampler)
    trainer = L.Trainer(
        **workers(),
        max_steps=steps,
        callbacks=[Elastic(sampler, storage=storage)],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(module, DataLoader(dataset, batch_sampler=sampler))
    return module


if __name__ == "__main__":
    main()
