"""Lightning's Trainer on nodes that come and go: an interrupted run equals one that was not.

    from spotelastic.integrations.lightning import ElasticCallback, workers

    elastic = ElasticCallback(sampler)
    trainer = L.Trainer(**workers(), max_epochs=10, callbacks=[elastic])
    trainer.fit(module, DataLoader(dataset, batch_sampler=sampler))

In `training_step` multiply the loss by `elastic.weight`.
"""

import os
import warnings
from typing import Any

from spotelastic.errors import UsageError
from spotelastic.integrations.libraries import require
from spotelastic.integrations.lightning_books import LoopBooks, total_steps
from spotelastic.training.checkpointer import Checkpointer
from spotelastic.training.data.sampler import ElasticSampler, microbatches

require("lightning")

import lightning as L  # noqa: E402


def workers() -> dict[str, Any]:
    """Return the Trainer's arguments for all workers that the launcher has started.

    They are as many on each node, in one group. Without a GPU, Lightning would otherwise take each
    worker for a job of its own. Its own samplers and checkpoints are switched off. Raises
    `UsageError` where nodes have unlike numbers of workers.
    """
    told = fabric_workers()
    if told["devices"] * told["num_nodes"] == 1:
        told["strategy"] = "auto"
    return {**told, "use_distributed_sampler": False, "enable_checkpointing": False}


def fabric_workers() -> dict[str, Any]:
    """Return Fabric's arguments for all workers that the launcher has started.

    Models are wrapped in DDP also where there is one worker: others may come. One that comes begins
    alone, and its model has to be of the same kind then.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = min(world, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if world % local:
        raise UsageError("Lightning needs the same number of workers on every node")
    strategy = "ddp" if "WORLD_SIZE" in os.environ else "auto"
    return {"devices": local, "num_nodes": world // local, "strategy": strategy}


class ElasticCallback(L.Callback):  # type: ignore[misc, name-defined, unused-ignore]
    """Restores when training starts, and saves when due.

    Model, optimizers, schedulers, place in the data, loops and callbacks' state are saved. A step
    is saved together with what follows it: the validation after it, and the end of its epoch.
    `options` are further arguments of the Checkpointer, as `storage` where the script runs without
    spotelastic.
    """

    def __init__(self, sampler: ElasticSampler, **options: Any) -> None:
        super().__init__()
        self.sampler = sampler
        self._options = options
        self._checkpoint: Checkpointer | None = None
        self._books: Any = None
        self._step = 0
        """The optimizer's last step that is known here."""
        self._total = 0
        """The step with which training ends; 0: that is not known."""
        self._waits = False
        """Whether that step is still to be counted: a validation or an epoch's end comes first."""

    @property
    def weight(self) -> float:
        """What to multiply a batch's mean loss by: ranks' shares of it may differ by one sample."""
        return microbatches(self.sampler.batch)[0].weight

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the run."""
        told = int(os.environ.get("WORLD_SIZE", "1"))
        if trainer.world_size != told:
            raise UsageError(
                f"Lightning knows of {trainer.world_size} of {told} workers, so that each would "
                "train a model of its own: L.Trainer(**workers(), ...)"
            )
        warnings.filterwarnings("ignore", ".*your dataloader is not resumable")  # The sampler is.
        self._books = LoopBooks(trainer)
        values = {"model": pl_module, "data": self.sampler, "trainer": self._books}
        for number, optimizer in enumerate(trainer.optimizers):
            values[f"optimizer_{number}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            values[f"scheduler_{number}"] = config.scheduler
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            values["scaler"] = trainer.precision_plugin.scaler
        self._books.share()
        self._total = total_steps(trainer)
        self._checkpoint = Checkpointer(values, **self._options).__enter__()
        self._step, self._waits = self._checkpoint.restore(), False
        if self._step:
            self._books.go_on(self.sampler)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step, unless something follows that belongs to it."""
        if trainer.global_step == self._step:  # accumulated: the optimizer has not stepped yet
            self.sampler.advance()
            return
        self._step, self._waits = trainer.global_step, True
        if not (trainer.is_last_batch or self._books.validates_after(batch_idx)):
            self._count(trainer, at_once=True)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Count the step before, after whose validation this one begins."""
        self._count(trainer)

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Count the last step of the epoch before."""
        self._count(trainer)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """Count the last step, and save it."""
        self._count(trainer)
        self._leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave without the step that has failed."""
        self._leave(exception)

    def _count(self, trainer: Any, *, at_once: bool = False) -> None:
        if not self._waits or self._checkpoint is None:
            return
        if not at_once:  # where callbacks have seen what followed
            self._books.share()
        self._waits = False
        self._books.stepping = at_once
        loss = trainer.callback_metrics.get("loss")
        self._checkpoint.step(self._step, loss=loss, total=self._total)

    def _leave(self, error: BaseException | None = None) -> None:
        """Close the Checkpointer, if training got as far as opening it."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint.__exit__(type(error) if error else None, error, None)
