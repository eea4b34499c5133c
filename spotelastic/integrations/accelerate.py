"""Loops with Hugging Face's accelerate, on nodes that come and go.

from spotelastic.integrations.accelerate import checkpointer, pieces

model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
with checkpointer(accelerator, sampler) as checkpoint:
    batches = checkpoint.batches(DataLoader(dataset, batch_sampler=sampler))
    for step in checkpoint.steps(1000):
        with step:
            for rows, weight in pieces(accelerator, next(batches), sampler):
                step.loss = model(**rows).loss
                accelerator.backward(step.loss * weight)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch

from spotelastic.errors import UsageError
from spotelastic.integrations.libraries import require
from spotelastic.training.checkpointer import Checkpointer
from spotelastic.training.data.sampler import ElasticSampler, microbatches

require("accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import send_to_device  # noqa: E402


def checkpointer(accelerator: Accelerator, sampler: ElasticSampler, **options: Any) -> Checkpointer:
    """Return a Checkpointer of all that was prepared and registered for checkpointing.

    Prepared schedulers then make one step for each of the optimizer's: accelerate makes as many as
    there are ranks. `options` are further arguments of the Checkpointer. Raises `UsageError` where
    a loader was prepared: it deals out samples to fixed ranks.
    """
    if accelerator._dataloaders:
        raise UsageError(
            "accelerator.prepare(loader): leave the loader out, and give it an se.ElasticSampler"
        )
    state: dict[str, Any] = {"data": sampler}
    for kind, prepared in (
        ("model", accelerator._models),
        ("optimizer", accelerator._optimizers),
        ("scheduler", accelerator._schedulers),
        ("custom", accelerator._custom_objects),
    ):
        for number, each in enumerate(prepared):
            state[kind if len(prepared) == 1 else f"{kind}_{number}"] = each
    if accelerator.scaler is not None:
        state["scaler"] = accelerator.scaler
    for scheduler in accelerator._schedulers:
        scheduler.split_batches = True
    return Checkpointer(state, **options)


def pieces(
    accelerator: Accelerator, batch: Any, sampler: ElasticSampler
) -> Iterator[tuple[Any, float]]:
    """Yield a rank's share of a step on its device, in `gradient_accumulation_steps` pieces.

    Each comes with the weight of its mean loss: added up over all pieces, and averaged over the
    ranks, that is the mean over the global batch. Gradients are exchanged in the last one.
    """
    count = accelerator.gradient_accumulation_steps
    share = math.ceil(sampler.batch / accelerator.num_processes / count)
    for piece in microbatches(sampler.batch, share):
        with ExitStack() as stack:
            if not piece.last:
                for model in accelerator._models:
                    stack.enter_context(accelerator.no_sync(model))
            accelerator.gradient_state._set_sync_gradients(piece.last)
            # accelerate divides a loss by the number of pieces.
            yield send_to_device(_rows(batch, piece.rows), accelerator.device), piece.weight * count


def _rows(batch: Any, rows: slice) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[rows]
    if isinstance(batch, tuple | list):
        return type(batch)(_rows(each, rows) for each in batch)
    if hasattr(batch, "items"):
        return {name: _rows(each, rows) for name, each in batch.items()}
    return batch
