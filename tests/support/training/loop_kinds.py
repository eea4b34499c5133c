"""Loops as people write them, each with something that a step may leave behind when it is undone.

Each is a class with a `state` and a `block`, which makes one step and returns its loss. The data of
a step depend on its number alone, so that the parameters do not depend on how many ranks share it.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import spotelastic as se

ROWS = 24


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def wrapped(module: nn.Module, **more: Any) -> nn.Module:
    return DistributedDataParallel(module, **more)


def rows(number: int) -> torch.Tensor:
    """Return the batch of all ranks."""
    return torch.randn(
        ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(number)
    )


def share(batch: torch.Tensor) -> torch.Tensor:
    return batch[dist.get_rank() :: dist.get_world_size()]


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the loss whose average over the ranks is that of the whole batch."""
    gaps: torch.Tensor = model(batch) - batch.sum(1, keepdim=True)
    return gaps.square().sum() * (dist.get_world_size() / ROWS)


def sgd(*modules: nn.Module, **more: Any) -> torch.optim.SGD:
    parameters = [each for module in modules for each in module.parameters()]
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **more)


class Plain:
    """A model and an optimizer, and nothing else."""

    def __init__(self) -> None:
        self.model = wrapped(net())
        self.optimizer = sgd(self.model)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        self.checkpoint: Any = None
        self.accident: Callable[[], None] | None = None
        """What happens to this rank in a step, once it has its gradients."""

    def happens(self) -> None:
        if self.accident is not None:
            self.accident()

    def batch(self, number: int) -> torch.Tensor:
        return share(rows(number))

    def block(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.batch(number))
        loss.backward()
        self.happens()
        self.optimizer.step()
        return loss.detach()

    def after(self, number: int) -> None:
        """What the loop does between two blocks."""


class FusedWithScaler(Plain):
    """The scaler leaves its scale on the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = self.state["optimizer"] = sgd(self.model, fused=True)
        self.scaler = self.state["scaler"] = torch.amp.GradScaler("cpu", init_scale=8.0)

    def block(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.batch(number))
        self.scaler.scale(loss).backward()
        self.happens()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


class ChangedBatch(Plain):
    """The block changes its batch in place."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: Iterator[torch.Tensor] | None = None

    def batch(self, number: int) -> torch.Tensor:
        self.batches = self.batches or self.checkpoint.batches([rows(n) for n in range(40)])
        batch = next(self.batches)
        return share(batch.sub_(1).div_(4))


class _Noisy(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> torch.Tensor:
        return rows(number) + torch.rand(ROWS, 8, dtype=torch.float64)


class AugmentsInLoader(Plain):
    """Its loader, which draws a seed for its workers, has none: this process augments."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: Iterator[torch.Tensor] | None = None

    def batch(self, number: int) -> torch.Tensor:
        if self.batches is None:
            self.batches = self.checkpoint.batches(DataLoader(_Noisy(), batch_size=None))
        return share(next(self.batches))


class TwoFrequencies(Plain):
    """The head steps in each block, the body in every fourth, with gradients that add up."""

    def __init__(self) -> None:
        super().__init__()
        inner: Any = self.model.module
        self.body, self.optimizer = sgd(inner[0]), sgd(inner[2])
        self.state = {"model": self.model, "body": self.body, "head": self.optimizer}

    def block(self, number: int) -> torch.Tensor:
        loss = loss_of(self.model, self.batch(number))
        loss.backward()
        self.happens()
        for optimizer, every in (self.optimizer, 1), (self.body, 4):
            if number % every == 0:
                optimizer.step()
                optimizer.zero_grad()
        return loss.detach()


class _Codebook(nn.Module):
    book: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("book", torch.ones(4096, 40, dtype=torch.float64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        average = next(self.inner.parameters()).detach().mean()
        self.book.data.mul_(0.9).add_(average)
        found: torch.Tensor = self.inner(batch) * self.book[0, :1]
        return found


class LargeBufferThroughData(Plain):
    """Forward moves a buffer of more than 1 MiB, which torch counts no write of."""

    def __init__(self) -> None:
        super().__init__()
        self.model = self.state["model"] = wrapped(_Codebook())
        self.optimizer = self.state["optimizer"] = sgd(self.model)


class Adversaries(Plain):
    """One of two models is frozen while the other one trains."""

    def __init__(self) -> None:
        super().__init__()
        self.other = wrapped(net())
        self.second = sgd(self.other)
        self.state |= {"other": self.other, "second": self.second}

    def block(self, number: int) -> torch.Tensor:
        batch = self.batch(number)
        self.optimizer.zero_grad()
        self.second.zero_grad()
        loss_of(self.other, batch).backward()
        self.other.requires_grad_(False)
        loss = loss_of(self.model, batch)
        loss.backward()
        self.happens()
        self.optimizer.step()
        self.second.step()
        self.other.requires_grad_(True)
        return loss.detach()


class FrozenForAWhile(Plain):
    """A part of the model is frozen for some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.model = self.state["model"] = wrapped(net(), find_unused_parameters=True)
        self.optimizer = self.state["optimizer"] = sgd(self.model)

    def block(self, number: int) -> torch.Tensor:
        inner: Any = self.model.module
        inner[0].requires_grad_(not 6 <= number <= 10)
        return super().block(number)


class OwnOptimizer(Plain):
    """Parameters are changed through `.data`, and nothing votes."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"model": self.model}

    def block(self, number: int) -> torch.Tensor:
        self.model.zero_grad()
        loss = loss_of(self.model, self.batch(number))
        loss.backward()
        self.happens()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.data -= 0.01 * parameter.grad
        return loss.detach()


class ProbeOfOneRank(Plain):
    """The first rank trains a probe of its own before the gradients are exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = nn.Linear(8, 1).double()
        self.own = sgd(self.probe)

    def batch(self, number: int) -> torch.Tensor:
        batch = super().batch(number)
        if dist.get_rank() == 0:
            self.own.zero_grad()
            loss_of(self.probe, batch).backward()
            self.own.step()
        return batch


class InnerOptimizer(Plain):
    """An optimizer of the block's own changes its input."""

    def batch(self, number: int) -> torch.Tensor:
        batch = super().batch(number)
        change = torch.zeros_like(batch, requires_grad=True)
        inner = torch.optim.SGD([change], lr=0.1)
        module: Any = self.model.module
        for _ in range(2):
            # The change of a row does not depend on the number of ranks.
            loss = -loss_of(module, batch + change) / dist.get_world_size()
            [change.grad] = torch.autograd.grad(loss, [change])
            inner.step()
        return batch + change.detach()


class SwallowedError(Plain):
    """The script goes on where backward has failed."""

    def __init__(self) -> None:
        super().__init__()
        first = next(self.model.parameters())
        first.register_hook(lambda _: self.happens())

    def block(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.batch(number))
        with suppress(Exception):
            loss.backward()
        self.optimizer.step()
        return loss.detach()


class CommunicationHook(Plain):
    """A hook in Python exchanges DDP's gradients, in the midst of its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        model: Any = wrapped(net())
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        self.model = self.state["model"] = model
        self.optimizer = self.state["optimizer"] = sgd(self.model)


class ReducedBefore(Plain):
    """A collective of the script's own comes before the optimizer's step."""

    def block(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.batch(number))
        loss.backward()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        self.happens()
        self.optimizer.step()
        return whole


class ReducedLoss(Plain):
    """The loss is averaged for a log after the optimizer's step."""

    def block(self, number: int) -> torch.Tensor:
        loss = super().block(number)
        dist.all_reduce(loss)
        return loss


class Closures(Plain):
    """The optimizer makes several passes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer: Any = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)
        self.state["optimizer"] = self.optimizer

    def block(self, number: int) -> torch.Tensor:
        batch = self.batch(number)

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, batch)
            loss.backward()
            whole = loss.detach().clone()
            dist.all_reduce(whole)
            return whole

        found: torch.Tensor = self.optimizer.step(closure)
        return found


# -- what comes back otherwise, and is named ------------------------------------------------------


class OwnGenerator(Plain):
    """Noise of a generator that nobody saves."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def batch(self, number: int) -> torch.Tensor:
        return super().batch(number) + torch.from_numpy(self.generator.normal(size=(1, 8)))


class OwnIterator(Plain):
    """Batches are taken from an iterator of the script's own."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = iter([rows(number) for number in range(40)])

    def batch(self, number: int) -> torch.Tensor:
        return share(next(self.rows))


class OwnCounter(Plain):
    """A schedule by a variable of the script."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def block(self, number: int) -> torch.Tensor:
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.01 / self.count
        return super().block(number)


class ModuleCounter(Plain):
    """A module counts its calls in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.model.calls = 0  # type: ignore[assignment]

    def block(self, number: int) -> torch.Tensor:
        self.model.calls += 1  # type: ignore[assignment, operator]
        return super().block(number)


class AccumulatesOverBlocks(Plain):
    """Gradients are kept for four blocks."""

    def block(self, number: int) -> torch.Tensor:
        loss = loss_of(self.model, self.batch(number))
        (loss / 4).backward()
        if number % 4 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


class SchedulerAfterBlock(Plain):
    """The scheduler steps between two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state["scheduler"] = self.scheduler

    def after(self, number: int) -> None:
        self.scheduler.step()


class SchedulerNotSaved(SchedulerAfterBlock):
    """The scheduler is not in the state."""

    def __init__(self) -> None:
        super().__init__()
        del self.state["scheduler"]

    def block(self, number: int) -> torch.Tensor:
        loss = super().block(number)
        self.scheduler.step()
        return loss

    def after(self, number: int) -> None:
        pass


class _Louder(nn.Module):
    """Does something else in training, as dropout does, but the same on any number of ranks."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch * 2 if self.training else batch


class EvaluatesForGood(Plain):
    """A collective of an evaluation fails, after which the model is left in its eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.model = self.state["model"] = wrapped(nn.Sequential(net(), _Louder()))
        self.optimizer = self.state["optimizer"] = sgd(self.model)

    def batch(self, number: int) -> torch.Tensor:
        was = self.model.training
        self.model.eval()
        self.happens()
        dist.all_reduce(loss_of(self.model.module, super().batch(99)).detach())  # type: ignore[arg-type]
        self.model.train(was)
        self.accident = None
        return super().batch(number)


class Samples(Plain):
    """Batches of a loader whose sampler is in the state."""

    def __init__(self) -> None:
        super().__init__()
        self.data = torch.cat([rows(number) for number in range(4)])
        self.sampler = self.state["data"] = se.ElasticSampler(self.data, ROWS)
        self.batches: Any = None

    def batch(self, number: int) -> torch.Tensor:
        if self.batches is None:
            loader = torch.utils.data.DataLoader(self.data, batch_sampler=self.sampler)  # type: ignore[arg-type, var-annotated]
            self.batches = self.taken(self.checkpoint.batches(loader))
        batch: torch.Tensor = next(self.batches)
        return batch

    def taken(self, batches: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        return batches


class Prefetched(Samples):
    """A prefetcher of the script's own is one batch ahead."""

    def taken(self, batches: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        def ahead() -> Iterator[torch.Tensor]:
            held = next(batches)
            while True:
                following = next(batches)
                yield held
                held = following

        return ahead()


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (rows(number) for number in itertools.count())


class Streamed(Samples):
    """The data set has no order to come back to."""

    def batch(self, number: int) -> torch.Tensor:
        if self.batches is None:
            loader = torch.utils.data.DataLoader(Stream(), batch_size=None)
            self.batches = self.checkpoint.batches(loader)
        return share(next(self.batches))


Kind = Callable[[], Plain]
RIGHT: tuple[type[Plain], ...] = (
    Plain,
    FusedWithScaler,
    ChangedBatch,
    AugmentsInLoader,
    TwoFrequencies,
    LargeBufferThroughData,
    Adversaries,
    FrozenForAWhile,
    OwnOptimizer,
    ProbeOfOneRank,
    InnerOptimizer,
    SwallowedError,
    EvaluatesForGood,
    ReducedBefore,
    CommunicationHook,
)
"""Loops that end, after the loss of a rank, with the parameters of one process alone."""
NAMED: tuple[type[Plain], ...] = (
    OwnGenerator,
    OwnIterator,
    OwnCounter,
    ModuleCounter,
    AccumulatesOverBlocks,
    SchedulerAfterBlock,
    SchedulerNotSaved,
)
"""Loops whose steps do not come back as they were."""
EQUAL: tuple[type[Plain], ...] = (ReducedLoss, Closures, Samples)
"""Others whose steps do."""
WARNED: tuple[type[Plain], ...] = (Prefetched, Streamed)
"""Loops of which a line says beforehand what a lost rank costs."""
