"""Loops that go through virtual ranks, with all that may depend on the number of ranks.

A loop is a class with a `state` and a `block`, which makes one step. It is trained by any number of
ranks, and tells a digest of everything that it has trained.
"""

import hashlib
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import spotelastic as se
from spotelastic.training.exact.pieces import MEASURED_EVERY

ROWS, WORDS, LENGTH = 37, 32, 9
"""Samples of an epoch, whose last batch is a small one; words, and how many a sample has."""
BATCH, VIRTUAL_RANKS = 12, 6


class Sentences(Dataset[Tensor]):
    """Augments each by numbers of all three generators."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Tensor:
        words = torch.arange(LENGTH) * (row + 1) + random.randrange(3) + np.random.randint(3)
        words[torch.randint(LENGTH, (1,))] = 0
        return words % WORDS


class Net(nn.Module):
    """Has dropout, a layer that is left out of some samples, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.2, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.seldom = nn.Linear(16, 16)
        self.never = nn.Linear(16, 16)
        self.out = nn.Linear(16, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        inner = self.layer(self.words(words))
        inner = self.norm(inner.transpose(1, 2)).transpose(1, 2)
        if torch.rand(()) < 0.3:
            inner = inner + self.seldom(inner)
        found: Tensor = self.out(inner)
        return found


def loss_of(model: nn.Module, words: Tensor) -> Tensor:
    found = model(words[:, :-1])
    return nn.functional.cross_entropy(found.flatten(0, 1), words[:, 1:].flatten())


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Virtual:
    """A model without a wrapper, and two workers of the loader."""

    workers = 0
    steps = 7
    guards = False

    def __init__(self) -> None:
        self.computed = 0
        """Pieces that this rank has computed, where that is counted."""
        self.model = self.wrapped(Net())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2, foreach=False)
        self.sampler = se.ElasticSampler(ROWS, BATCH, virtual_ranks=VIRTUAL_RANKS, seed=3)
        loader = DataLoader(Sentences(), batch_sampler=self.sampler, num_workers=self.workers)
        self.loader: Any = loader
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "data": self.sampler,
        }
        self.build: Callable[[], dict[str, Any]] | None = None
        self.checkpoint: Any = None
        self.batches: Iterator[Tensor] | None = None

    def wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def batch(self) -> Tensor:
        self.batches = self.batches or self.checkpoint.batches(self.loader)
        return next(self.batches)

    def after(self, number: int) -> None:
        """What the loop does between two blocks: nothing."""

    def without_exchange(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        return loss

    def backward(self, words: Tensor) -> None:
        for micro in self.sampler.microbatches():
            with self.without_exchange(micro.last):
                micro.loss = loss_of(self.model, words[micro.rows])
                self.scaled(micro.loss * micro.weight).backward()

    def block(self, number: int) -> Any:
        words = self.batch()
        self.optimizer.zero_grad()
        self.backward(words)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return self.sampler.loss

    def digest(self) -> str:
        """Of parameters, buffers, moments and losses."""
        found = hashlib.sha256()
        inner = getattr(self.model, "module", self.model)
        for tensor in inner.state_dict().values():
            found.update(_whole(tensor).numpy().tobytes())
        for moments in self.optimizer.state_dict()["state"].values():
            for value in moments.values():
                found.update(_whole(torch.as_tensor(value)).numpy().tobytes())
        return found.hexdigest()[:16]


class Wrapped(Virtual):
    """DDP, and a loader with workers, which are ahead of the loop."""

    workers = 1

    def wrapped(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, find_unused_parameters=True)

    def without_exchange(self, last: bool) -> AbstractContextManager[None]:
        model: Any = self.model
        found: AbstractContextManager[None] = nullcontext() if last else model.no_sync()
        return found


class WrappedWithoutNoSync(Wrapped):
    """Each piece exchanges its gradients, as far as DDP knows."""

    workers = 0

    def without_exchange(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()


class Twice(Virtual):
    """Goes through the pieces twice, the second time with gradients that are there already, and has
    a scaler.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scaler = self.state["scaler"] = torch.amp.GradScaler("cpu", init_scale=8.0)

    def scaled(self, loss: Tensor) -> Tensor:
        found: Tensor = self.scaler.scale(loss)
        return found

    def block(self, number: int) -> Any:
        words = self.batch()
        self.optimizer.zero_grad(set_to_none=False)
        self.backward(words)
        self.backward(words)
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.sampler.loss


class Sharded(Virtual):
    """By FSDP2, with a layer that some pieces leave out, and gradients that are there already."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"data": self.sampler}
        self.build = self.shard

    def shard(self) -> dict[str, Any]:
        model = Net()
        fully_shard([model.layer, model.norm])
        self.model = cast("nn.Module", fully_shard(model))
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
        return {"model": self.model, "optimizer": self.optimizer}

    def block(self, number: int) -> Any:
        words = self.batch()
        self.optimizer.zero_grad()
        self.backward(words)
        if number == 3:
            self.backward(words)
        self.sampler.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return self.sampler.loss


class Throttled(Wrapped):
    """Ranks are the slower the higher their numbers are, as on unlike GPUs."""

    steps = 90

    def scaled(self, loss: Tensor) -> Tensor:
        self.computed += 1
        time.sleep(0.01 * (1 + 3 * int(os.environ["RANK"])))
        return loss


class Poisoned(Virtual):
    """Has batches with which gradients are not finite, or far too large."""

    steps, guards = 48, True
    poison: Mapping[tuple[int, int], float] = {
        (1, 24): math.nan,
        (5, 12): math.inf,
        (6, 0): 1e6,
        **dict.fromkeys(((7, 24), (7, 36), (8, 0)), math.nan),
        (9, 12): -1e9,
    }
    """By epoch and samples before it, by what the loss is multiplied."""
    counted = 4
    """How many of them are skipped, and not left out."""

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.poison.get((self.sampler.epoch, self.sampler.consumed), 1.0)


class LeavesOut(Virtual):
    """Leaves those batches out."""

    steps = Poisoned.steps - Poisoned.counted
    made = 60 - Poisoned.counted
    """Steps of a run whose others make 60."""

    def __init__(self) -> None:
        super().__init__()
        self.sampler.left_out |= {*Poisoned.poison}


class Flipped(Virtual):
    """One rank of three has a bit flipped, once: in what it computes, or in what it has."""

    audits = 1
    """One step of so many is audited. All of three ranks are asked then."""
    what = ""
    rank, at = 0, 0

    def backward(self, words: Tensor) -> None:
        is_due = self.at == self.number and self.rank == int(os.environ["RANK"])
        parameters = [*self.model.parameters()]
        draw = random.Random(f"{self.what}/{self.rank}/{self.at}")
        self.at = 0 if is_due else self.at  # once, also if the step comes again
        if is_due and self.what != "gradient":
            moments = [self.optimizer.state[each]["exp_avg"] for each in parameters[:-4]]
            flip(draw, draw.choice(parameters if self.what == "weight" else moments).data)
        for micro in self.sampler.microbatches():
            micro.loss = loss_of(self.model, words[micro.rows])
            (micro.loss * micro.weight).backward()
            if is_due and self.what == "gradient":
                flip(draw, self.model.get_parameter("out.weight").grad)

    def block(self, number: int) -> Any:
        self.number = number
        return super().block(number)


def flip(draw: random.Random, tensor: Tensor | None) -> None:
    """Flip one bit of one element."""
    assert tensor is not None
    words = tensor.view(-1).view(torch.int32)
    words[draw.randrange(len(words))] ^= 1 << draw.randrange(31)


class ThrottledWhereMeasured(Throttled):
    """So slow in the steps that measure it that shares change also where all have too little time
    to compute.
    """

    def block(self, number: int) -> Any:
        self.is_measured = number % MEASURED_EVERY == 0
        return super().block(number)

    def scaled(self, loss: Tensor) -> Tensor:
        if self.is_measured:
            time.sleep(0.3 * (1 + 3 * int(os.environ["RANK"])))
        return loss


KINDS = {kind.__name__: kind for kind in (Virtual, Wrapped, WrappedWithoutNoSync, Twice, Sharded)}
