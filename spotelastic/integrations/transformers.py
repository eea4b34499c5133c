"""Hugging Face's Trainer on nodes that come and go: an interrupted run equals one that was not.

    from spotelastic.integrations.transformers import ElasticTrainer

    trainer = ElasticTrainer(model, arguments, train_dataset=dataset, global_batch=64)
    trainer.train()

A subclass of the Trainer (of TRL, say) becomes elastic by `class Mine(ElasticMixin, SFTTrainer)`.
"""

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from spotelastic.errors import UsageError
from spotelastic.integrations.libraries import require
from spotelastic.integrations.trainer_books import Books
from spotelastic.training.checkpointer import Checkpointer
from spotelastic.training.data.sampler import ElasticSampler, microbatches
from spotelastic.training.in_place.watching import IN_PLACE

require("transformers")

from transformers import Trainer, TrainerCallback  # noqa: E402
from transformers.trainer import TRAINER_STATE_NAME  # noqa: E402
from transformers.trainer_callback import TrainerState  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402

logger = logging.getLogger(__name__)


class InPlaceSteps(TrainerCallback):
    """Makes each step in a block: from the moment its batch is taken until the next one is.

    The block of a step that is rehearsed ends earlier, once its optimizer has stepped. The Trainer
    makes such a step several times, and its callbacks are told of it once.
    """

    def __init__(self, trainer: Any, sampler: ElasticSampler, options: dict[str, Any]) -> None:
        self.trainer, self.sampler = trainer, sampler
        self.options = options
        self.checkpoint: Checkpointer | None = None
        self.books: Any = None
        self.batches: Any = None
        self.step: Any = None
        self.lost = False
        """Whether a peer was lost in the last step, so that the next one is it again."""
        self.stepped = False
        """Whether a step was finished in this pass."""
        self.ends_epoch = False
        """Whether the step that was made last is its epoch's last one, and finished."""
        self._rehearsed = self._told_of = 0
        """The step that is rehearsed, and the one whose beginning callbacks have been told of while
        it is made again; 0: none."""
        self._flops: Any = 0
        """Floating point operations before the step, as the Trainer counts them."""
        self._muted: list[Any] = []
        """Callbacks that are not told of an attempt."""
        self.given = ""
        """A checkpoint of the Trainer's own that the run may begin from."""
        self.begins_from = 0
        """The step of that checkpoint if the run does; 0: it does not."""

    # -- what the Trainer tells -------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Restore the run, with the Trainer's books."""
        self.books = Books(self.trainer)
        values = {
            "model": more["model"],
            "optimizer": more["optimizer"],
            "scheduler": more["lr_scheduler"],
            "data": self.sampler,
            "trainer": self.books,
        }
        if getattr(self.trainer.accelerator, "scaler", None) is not None:
            values["scaler"] = self.trainer.accelerator.scaler
        state.num_train_epochs = self.trainer.epochs
        self.checkpoint = Checkpointer(values, **self.options).__enter__()
        begun = state.global_step
        state.global_step = self.checkpoint.restore()
        if state.global_step:
            args.eval_on_start = False  # it was done
            self.trainer._initial_global_step = 0  # since when losses were added up
            if self.given:
                logger.warning(
                    f"resume_from_checkpoint={self.given} is left out: the Checkpointer has step "
                    f"{state.global_step}. To begin from it, train with another storage"
                )
        elif self.given and begun:
            state.global_step = self.begins_from = begun
            for _ in range(begun - 1):
                self.sampler.advance()
            self.checkpoint.step(begun)  # which advances it, too
        self.steps, self.batches = self.checkpoint.steps(state.max_steps), None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say where in the data the run is. The block goes on: the Trainer may log or evaluate."""
        samples = self.sampler.consumed + self.sampler.batch
        state.epoch = self.sampler.epoch + samples / self._in_epoch
        self.stepped = self._counts()
        self.ends_epoch = self.stepped and samples >= self._in_epoch

    def _counts(self) -> bool:
        """Return whether the step is finished. One that is rehearsed may have to be made again."""
        step = self.step
        if step.number != self._rehearsed:
            return True
        self.end()
        if step.finished:
            self._tell_callbacks()
            self._rehearsed = self._told_of = 0
            return True
        self.trainer.current_flos = self._flops
        if not self._muted:
            self._told_of = step.number
            self._mute_callbacks()
        return False

    def _mute_callbacks(self) -> None:
        callbacks = self.trainer.callback_handler.callbacks
        self._muted += [each for each in callbacks if each is not self]
        callbacks[:] = [self]

    def _tell_callbacks(self) -> None:
        """Tell the other callbacks again of what happens."""
        self.trainer.callback_handler.callbacks[1:1] = self._muted
        self._muted = []

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the last step."""
        if self.lost:
            raise RuntimeError("a step was lost when training was over: start again")
        self.end()
        self.leave()

    # -- the blocks -------------------------------------------------------------------------------

    @property
    def _in_epoch(self) -> int:
        return len(self.sampler) * self.sampler.global_batch

    def begins_pass(self) -> Any:
        """Return the batches of the run, which no pass begins anew."""
        self.stepped = self.ends_epoch = False
        if self.batches is None:
            assert self.checkpoint is not None
            self.batches = self.checkpoint.batches(self.trainer.loader)
        return self.batches

    def begin(self, state: Any) -> bool:
        """Begin the next step, if one is left. It may be one that was made before."""
        self.end()
        self._tell_callbacks()
        self.ends_epoch = self.lost = False
        self.step = next(self.steps, None)
        if self.step is None:
            return False
        self._flops = self.trainer.current_flos
        is_first = self.step.rehearses and self.step.number != self._rehearsed
        if is_first:
            self._rehearsed = self.step.number
        if is_first or self.step.number == self._told_of:
            self._mute_callbacks()
        self.step.__enter__()
        state.global_step = self.step.number - 1
        return True

    def end(self) -> None:
        """End the block of a step, which saves it if a save is due."""
        step, self.step = self.step, None
        if step is not None:
            step.__exit__(None, None, None)

    def again(self, error: BaseException) -> bool:
        """Return whether a peer was lost, so that a step is to be begun again.

        Otherwise the exception is the script's own.
        """
        step, self.step, self.ends_epoch = self.step, None, False
        self.lost = step is not None and step.__exit__(type(error), error, error.__traceback__)
        return self.lost

    def leave(self, error: BaseException | None = None) -> None:
        """Close the Checkpointer, if training got as far as opening it."""
        self._tell_callbacks()
        checkpoint, self.checkpoint = self.checkpoint, None
        if checkpoint is not None:
            checkpoint.__exit__(type(error) if error else None, error, None)


class TrainerBatches:
    """What the Trainer takes for a loader."""

    def __init__(self, loader: DataLoader[Any], elastic: InPlaceSteps) -> None:
        self.dataset, self._loader, self._elastic = loader.dataset, loader, elastic

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = self._elastic.begins_pass()
        return batches


class ElasticMixin:
    """Makes a Trainer's steps take `global_batch` samples, however many ranks there are.

    Model, optimizer, scheduler, place in the data, history and callbacks' state are saved with each
    save of the Checkpointer, and restored when training begins. Where a peer is lost, what was done
    of the step is undone, and it is done again by the ranks that are left, in the same processes.

    `gradient_accumulation_steps` says in how many pieces a rank's share of a step is computed.
    `checkpointer` holds further arguments of the Checkpointer, as `{"storage": "s3://..."}` where
    the script runs without spotelastic.
    """

    def __init__(
        self: Any,
        *args: Any,
        global_batch: int,
        checkpointer: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)  # type: ignore[misc]
        _check_ranks(self.args)
        if not hasattr(self.train_dataset, "__len__"):
            raise UsageError(
                "ElasticTrainer: the data set has no length, so none of it is dealt out"
            )
        self.pieces = self.args.gradient_accumulation_steps
        self.args.gradient_accumulation_steps = 1  # The pieces are none of the Trainer's business.
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        # With `drop_last` every rank has a share of each step.
        sampler = ElasticSampler(self.train_dataset, global_batch, seed=seed, drop_last=True)
        self.elastic = InPlaceSteps(self, sampler, checkpointer or {})
        # Before all others, which see the restored state then.
        self.callback_handler.callbacks.insert(0, self.elastic)
        self.epochs = 0
        self._weight = 1.0

    def train(
        self: Any, resume_from_checkpoint: str | bool | None = None, *args: Any, **more: Any
    ) -> Any:
        """Train from where the run is. Raises what the Trainer raises.

        A checkpoint of the Trainer's own is where a run begins of which the Checkpointer has
        nothing. Otherwise it is left out, as it is where some ranks do not have it.
        """
        given = resume_from_checkpoint
        if given is True:
            given = get_last_checkpoint(self.args.output_dir)
        self.elastic.given = _that_all_have(given)
        try:
            return super().train(self.elastic.given or None, *args, **more)  # type: ignore[misc]
        except BaseException as error:
            self.elastic.again(error)
            self.elastic.leave(error)
            raise

    # -- data -------------------------------------------------------------------------------------

    def get_train_dataloader(self: Any) -> Any:
        """Return each rank's share of each step."""
        dataset, collate = self.train_dataset, self.data_collator
        if "datasets" in sys.modules and isinstance(dataset, sys.modules["datasets"].Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        self.loader = DataLoader(
            dataset,
            batch_sampler=self.elastic.sampler,
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
        )
        return TrainerBatches(self.loader, self.elastic)

    def get_total_train_batch_size(self: Any, args: Any) -> int:
        """Return the samples of a step on all ranks."""
        return int(self.elastic.sampler.global_batch)

    def set_initial_training_values(self: Any, args: Any, dataloader: Any) -> Any:
        """Leave it to the data when an epoch ends, and to `max_steps` when training does.

        A run that resumes makes fewer steps in its first pass, and more where it goes back.
        """
        self.epochs, _, *more = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        return (sys.maxsize, sys.maxsize, *more)

    def _init_training_state(self: Any, *args: Any, **more: Any) -> tuple[int, int]:
        """Leave it to the data where in an epoch training begins."""
        super()._init_training_state(*args, **more)  # type: ignore[misc]
        return 0, 0

    def _load_rng_state(self: Any, checkpoint: Any) -> None:
        if self.elastic.begins_from:  # otherwise the Checkpointer has restored it
            super()._load_rng_state(checkpoint)  # type: ignore[misc]

    def get_batch_samples(self: Any, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Begin a step, and take its batch. All ranks together count its tokens."""
        if self.elastic.ends_epoch:
            self.control.should_epoch_stop = True
            return [], None
        while self.elastic.begin(self.state):
            try:
                return super().get_batch_samples(epoch_iterator, 1, device)  # type: ignore[misc]
            except Exception as error:
                if not self.elastic.again(error):
                    raise
        self.control.should_training_stop = True
        return [], None

    # -- a step -----------------------------------------------------------------------------------

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Compute the gradients, until all ranks have all gradients of the same step."""
        while True:
            try:
                loss = self._in_pieces(model, inputs, num_items_in_batch)
                self.elastic.step.loss = loss
                self.elastic.step.vote()
                return loss
            except BaseException as error:
                if not self.elastic.again(error):
                    raise
            model.zero_grad()
            [inputs], num_items_in_batch = self.get_batch_samples(
                self.elastic.batches, 1, self.args.device
            )

    def _in_pieces(self: Any, model: Any, inputs: Any, num_items_in_batch: Any) -> torch.Tensor:
        """Return the mean loss of the step, on all ranks the same: it is part of the state."""
        sampler = self.elastic.sampler
        share = math.ceil(sampler.batch / _world_size() / self.pieces)
        pieces, total = microbatches(sampler.batch, share), torch.zeros((), device=self.args.device)
        if _world_size() > sampler.batch:
            raise UsageError(
                f"a global batch of {sampler.batch} has no sample for some of {_world_size()} ranks"
            )
        for piece in pieces:
            self._weight = piece.weight
            part = inputs if len(pieces) == 1 else _rows(inputs, piece.rows)
            with nullcontext() if piece.last else self.accelerator.no_sync(model=model):
                total += super().training_step(model, part, num_items_in_batch)  # type: ignore[misc]
        if _world_size() > 1:
            dist.all_reduce(total)
            total /= _world_size()
        return total

    def compute_loss(
        self: Any,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Weight the loss of a piece.

        Gradients are averaged over ranks, whose shares may differ by one sample. A model that is
        told the number of items in the batch has divided by it already.
        """
        more = {"return_outputs": True} if return_outputs else {}
        found = super().compute_loss(  # type: ignore[misc]
            model, inputs, num_items_in_batch=num_items_in_batch, **more
        )
        if not model.training or num_items_in_batch is not None:
            return found
        if return_outputs:
            return found[0] * self._weight, *found[1:]
        return found * self._weight

    def _maybe_log_save_evaluate(self: Any, *args: Any, **more: Any) -> None:
        """Log, and evaluate. If a peer is lost meanwhile, all go back to the last save."""
        if not self.elastic.stepped:
            return  # the run was over when it began
        if getattr(self.elastic.step, "rehearses", False):
            return  # it is made again, and tells it then
        told = self.control.should_log or self.control.should_evaluate
        try:
            super()._maybe_log_save_evaluate(*args, **more)  # type: ignore[misc]
            if told:
                self.elastic.books.share()
        except Exception as error:
            if not self.elastic.again(error):
                raise
            self.control.should_training_stop = False


class ElasticTrainer(ElasticMixin, Trainer):
    """Hugging Face's Trainer, with `global_batch` in place of a batch per device."""


def _that_all_have(checkpoint: str | bool | None) -> str:
    """Return a checkpoint of the Trainer's if all ranks have one of the same step; else nothing.

    Each node may write those into a folder of its own. A worker that comes to others that go on in
    their processes takes none.
    """
    path = checkpoint if isinstance(checkpoint, str) else ""
    state = Path(path, TRAINER_STATE_NAME)
    step = TrainerState.load_from_json(str(state)).global_step if state.is_file() else 0
    if os.environ.get(IN_PLACE):
        return ""
    steps: list[int] = [step]
    if _world_size() > 1:
        steps *= _world_size()
        dist.all_gather_object(steps, step)
    if path and (not step or {*steps} != {step}):
        logger.warning(
            f"resume_from_checkpoint={path} is left out: it is of step {step}, and the ranks have "
            f"steps {', '.join(map(str, sorted({*steps})))} there"
            if step
            else f"resume_from_checkpoint={path} is left out: it has no {TRAINER_STATE_NAME}"
        )
        return ""
    return path


def _check_ranks(args: Any) -> None:
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    if args.world_size != workers:
        raise UsageError(
            f"the Trainer knows of {args.world_size} of {workers} workers, so that each would "
            "train a model of its own: without a GPU set TrainingArguments(use_cpu=True)"
        )


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _rows(inputs: Any, rows: slice) -> Any:
    """Return some rows of a batch: of its tensors, and of lists of the same length."""
    size = max(
        (len(v) for v in inputs.values() if isinstance(v, torch.Tensor) and v.ndim), default=0
    )
    cut = {
        name: value[rows]
        if isinstance(value, torch.Tensor | list) and _length(value) == size
        else value
        for name, value in inputs.items()
    }
    return type(inputs)(cut)


def _length(value: Any) -> int:
    return len(value) if not isinstance(value, torch.Tensor) or value.ndim else 0
