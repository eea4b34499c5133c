"""Trains under the Hugging Face Trainer, with a callback for the state and a loader for the data.

    spotelastic run --standalone --nproc-per-node 2 examples/huggingface_trainer.py

The Trainer stops at `max_steps`. `ElasticTrainer` takes a global batch instead of a batch per
device, so that the batch stays the same when nodes come and go. Its processes live on then: a step
in which a peer was lost is made again. With the callback alone the state is carried over as well,
but by new processes, and the data of a half-finished epoch start again. The Trainer tells no
callback that `train()` raised: a script that goes on after that, without `ElasticTrainer`, calls
`leave(error)` itself.

On machines without a GPU the Trainer has to be told so (`use_cpu`). Otherwise each worker would
train a model of its own. `Elastic` refuses to train such models.
"""

import os
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

import spotelastic as se


class Elastic(TrainerCallback):
    """Restores when training begins, and saves when due. Switch the Trainer's own saves off."""

    def __init__(self, data: se.ElasticSampler | None = None, **options) -> None:
        self.data = data
        self.options = options
        self.checkpoint = None

    def on_train_begin(self, args, state, control, model, optimizer, lr_scheduler, **_) -> None:
        workers = int(os.environ.get("WORLD_SIZE", "1"))
        if args.world_size != workers:
            raise RuntimeError(
                f"the Trainer knows of {args.world_size} of {workers} workers, so that each would "
                "train a model of its own: without a GPU set TrainingArguments(use_cpu=True)"
            )
        values = {"model": model, "optimizer": optimizer, "scheduler": lr_scheduler}
        if self.data is not None:
            values["data"] = self.data
        self.checkpoint = se.Checkpointer(values, **self.options).__enter__()
        state.global_step = self.checkpoint.restore()

    def on_step_end(self, args, state, control, **_) -> None:
        self.checkpoint.step(state.global_step)

    def on_train_end(self, args, state, control, **_) -> None:
        self.leave()

    def leave(self, error: BaseException | None = None) -> None:
        """Close the Checkpointer, if training got as far as opening it.

        Until then no other can be opened.
        """
        checkpoint, self.checkpoint = self.checkpoint, None
        if checkpoint is not None:
            checkpoint.__exit__(type(error) if error else None, error, None)


class InPlace(Elastic):
    """Makes each step in a block: from the moment its batch is taken until the next one is."""

    step = None
    batches = None
    lost = False

    def on_train_begin(self, args, state, control, **more) -> None:
        super().on_train_begin(args, state, control, **more)
        self.steps, self.batches = self.checkpoint.steps(state.max_steps), None

    def on_step_end(self, args, state, control, **_) -> None:
        """The block goes on: the Trainer may gather losses or evaluate now."""

    def on_train_end(self, args, state, control, **_) -> None:
        if self.lost:
            raise RuntimeError("a step was lost when training was over: start again")
        self.end()
        self.leave()

    def begin(self, state) -> bool:
        """Begin the next step, if one is left. It may be one that was made before."""
        self.end()
        self.lost, self.step = False, next(self.steps, None)
        if self.step is None:
            return False
        self.step.__enter__()
        state.global_step = self.step.number - 1
        return True

    def end(self) -> None:
        step, self.step = self.step, None
        if step is not None:
            step.__exit__(None, None, None)

    def again(self, error: BaseException) -> bool:
        """Return whether a peer was lost, so that a step is to be begun again.

        Otherwise the exception is the script's own.
        """
        step, self.step = self.step, None
        self.lost = step is not None and step.__exit__(type(error), error, error.__traceback__)
        return self.lost


class Batches:
    """What the Trainer takes for a loader: it has each rank's share of each step, for ever."""

    def __init__(self, loader: DataLoader, elastic: InPlace) -> None:
        self.loader, self.elastic = loader, elastic
        self.dataset = loader.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator:
        if self.elastic.batches is None:
            self.elastic.batches = self.elastic.checkpoint.batches(self.loader)
        return self.elastic.batches


class ElasticTrainer(Trainer):
    """A Trainer whose steps take `global_batch` samples, however many ranks there are.

    Where a peer is lost, what was done of the step is undone, and it is done again with the ranks
    that are left, in the same process.
    """

    def __init__(self, *args, global_batch: int, storage: str | None = None, **more) -> None:
        super().__init__(*args, **more)
        if self.args.gradient_accumulation_steps != 1:
            raise ValueError(
                "set gradient_accumulation_steps=1: the global batch says what a step takes"
            )
        # With `drop_last` every rank has a share of each step.
        self.sampler = se.ElasticSampler(
            self.train_dataset, global_batch, seed=self.args.seed, drop_last=True
        )
        self.elastic = InPlace(self.sampler, storage=storage)
        self.add_callback(self.elastic)

    def train(self, *args, **more):
        try:
            return super().train(*args, **more)
        except BaseException as error:
            self.elastic.again(error)
            self.elastic.leave(error)
            raise

    def get_train_dataloader(self) -> Batches:
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self.sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        return Batches(loader, self.elastic)

    def get_batch_samples(self, batches, count, device):
        """Begin a step, and take its batch. All ranks together count its tokens."""
        while self.elastic.begin(self.state):
            try:
                return super().get_batch_samples(batches, count, device)
            except Exception as error:
                if not self.elastic.again(error):
                    raise
        return [], None

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Compute the gradients, until all ranks have all gradients of the same step."""
        while True:
            try:
                loss = super().training_step(model, inputs, num_items_in_batch)
                self.elastic.step.loss = loss
                self.elastic.step.vote()
                return loss
            except BaseException as error:
                if not self.elastic.again(error):
                    raise
            [inputs], num_items_in_batch = self.get_batch_samples(
                self.elastic.batches, 1, self.args.device
            )

    def _maybe_log_save_evaluate(self, *args, **more) -> None:
        """Log, and evaluate. If a peer is lost meanwhile, all go back to the last save."""
        try:
            super()._maybe_log_save_evaluate(*args, **more)
        except Exception as error:
            if not self.elastic.again(error):
                raise
            self.control.should_training_stop = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Weight the loss.

        Gradients are averaged over ranks, whose shares may differ by one sample. A model that is
        told the number of items in the batch has divided by it already.
        """
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training and num_items_in_batch is None:
            loss = loss * se.microbatches(self.sampler.batch)[0].weight
        return (loss, outputs) if return_outputs else loss


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x).squeeze(1) - labels).square().mean()}


def main(steps: int = 200, storage: str | None = None) -> ElasticTrainer:
    torch.manual_seed(0)
    rows = torch.randn(256, 8)
    dataset = [{"x": row, "labels": row.sum()} for row in rows]
    arguments = TrainingArguments(
        output_dir="runs/huggingface",
        max_steps=steps,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        learning_rate=0.01,
        lr_scheduler_type="constant",  # does not depend on max_steps
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = ElasticTrainer(
        Regression(), arguments, train_dataset=dataset, global_batch=24, storage=storage
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
