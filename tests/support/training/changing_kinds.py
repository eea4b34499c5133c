"""More loops as people write them: what a block changes comes late, or is nowhere in the state.

They are classes as in `loop_kinds`.
"""

import copy
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from support.training.loop_kinds import Plain, loss_of, net, rows, sgd, wrapped
from torch import nn


class LateBuffer(Plain):
    """A buffer is None until some steps are made, as running statistics are."""

    def __init__(self) -> None:
        super().__init__()
        inner: Any = self.model.module
        inner.register_buffer("mean", None)

    def batch(self, number: int) -> torch.Tensor:
        inner: Any = self.model.module
        batch = super().batch(number)
        if number >= 6:
            with torch.no_grad():
                moved = 1 + 0.1 * inner[0].bias.mean()
            inner.mean = moved if inner.mean is None else inner.mean * 0.5 + moved
            batch = batch * inner.mean
        return batch


def halved(_module: nn.Module, _given: Any, made: torch.Tensor) -> torch.Tensor:
    return made / 2


class Grown(Plain):
    """A layer gets a hook in the step that is rehearsed and in that in which a rank is lost.

    In the latter another layer begins to train.
    """

    def __init__(self) -> None:
        super().__init__()
        inner: Any = self.model.module
        self.optimizer = self.state["optimizer"] = sgd(inner[0])

    def block(self, number: int) -> torch.Tensor:
        inner: Any = self.model.module
        if number in (2, 8):
            inner[0 if number == 2 else 2].register_forward_hook(halved)
        if number == 8:
            self.optimizer.add_param_group({"params": [*inner[2].parameters()], "lr": 0.003})
        return super().block(number)


class BuffersNobodyCanFill(Plain):
    """Some elements of a buffer are the same memory; another one is of inference mode."""

    def __init__(self) -> None:
        super().__init__()
        with torch.inference_mode():
            fixed = torch.full((8,), 0.5, dtype=torch.float64)
        inner = net()
        inner.register_buffer("fixed", fixed)
        inner.register_buffer("mask", torch.ones(1, dtype=torch.float64).expand(8))
        self.model = self.state["model"] = wrapped(inner, broadcast_buffers=False)
        self.optimizer = self.state["optimizer"] = sgd(self.model)

    def batch(self, number: int) -> torch.Tensor:
        inner: Any = self.model.module
        return super().batch(number) * inner.mask + inner.fixed


class KeptGenerators(Plain):
    """Generators of Python, numpy and torch are in the state, and so is a small tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.own = {
            "python": random.Random(0),
            "numpy": np.random.default_rng(0),
            "legacy": np.random.RandomState(0),
            "torch": torch.Generator(),
        }
        self.mean = torch.zeros(8, dtype=torch.float64)
        self.state |= {**self.own, "mean": self.mean}

    def batch(self, number: int) -> torch.Tensor:
        own: dict[str, Any] = self.own
        self.mean.mul_(0.9).add_(rows(number).mean(0))
        noise = own["python"].random() + own["numpy"].normal() + own["legacy"].rand()
        return super().batch(number) - self.mean + noise + torch.rand(1, 8, generator=own["torch"])


class UnusedGradients(Plain):
    """A part that nobody trains gathers gradients, which nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        inner: Any = self.model.module
        self.optimizer = self.state["optimizer"] = sgd(inner[2])


class StepsBetweenPasses(Plain):
    """A second pass comes after the first optimizer's step, as where adversaries take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.other = wrapped(net())
        self.second = sgd(self.other)
        self.state |= {"other": self.other, "second": self.second}

    def block(self, number: int) -> torch.Tensor:
        loss = super().block(number)
        self.second.zero_grad()
        loss_of(self.other, self.batch(number)).backward()
        self.second.step()
        return loss


class PrivateCounter(Plain):
    """A module of the script's own counts in a private attribute, which shows only later."""

    def __init__(self) -> None:
        super().__init__()
        self.model = self.state["model"] = wrapped(_Counting())
        self.optimizer = self.state["optimizer"] = sgd(self.model)


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self._calls = net(), 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        found: torch.Tensor = self.inner(batch) * (2 if self._calls > 100 else 1)
        return found


class OtherName(Plain):
    """A variable holds what the block has put into the state in place of another object."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = torch.zeros(1)
        self.state["losses"] = self.losses

    def block(self, number: int) -> torch.Tensor:
        self.state["losses"] = self.losses = torch.cat([self.losses, torch.ones(1)])
        self.optimizer.param_groups[0]["lr"] = 0.001 * len(self.losses)
        return super().block(number)


class HeldTwice(Plain):
    """Variables hold containers of the state, an array, and tensors within them, as an optimizer
    does of its weights in full precision. A block puts another tensor into the state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.whole = [each.detach().clone().requires_grad_() for each in self.model.parameters()]
        self.optimizer = torch.optim.SGD(self.whole, lr=0.01, momentum=0.9)
        self.average = torch.zeros(8, dtype=torch.float64)
        self.losses: deque[float] = deque(maxlen=4)
        self.seen: set[int] = set()
        self.total = np.zeros(1)
        self.state |= {
            "optimizer": self.optimizer,
            "whole": self.whole,
            "averages": {"rows": [self.average]},
            "losses": self.losses,
            "seen": self.seen,
            "total": self.total,
            "rate": torch.ones(1, dtype=torch.float64),
        }

    def block(self, number: int) -> torch.Tensor:
        self.losses.append(number)
        self.seen.add(number)
        self.total += 1
        self.state["rate"] = self.state["rate"] + 1
        self.average.mul_(0.9).add_(rows(number).mean(0))
        known = len(self.losses) + len(self.seen) + float(self.total[0]) + float(self.state["rate"])
        self.optimizer.param_groups[0]["lr"] = 0.001 * known
        self.model.zero_grad()
        loss = loss_of(self.model, self.batch(number) - self.average)
        loss.backward()
        for whole, parameter in zip(self.whole, self.model.parameters(), strict=True):
            whole.grad = parameter.grad
        self.happens()
        self.optimizer.step()
        with torch.no_grad():
            for whole, parameter in zip(self.whole, self.model.parameters(), strict=True):
                parameter.copy_(whole)
        return loss.detach()


class DecidesLater(Plain):
    """What decides about a later step is gathered in the block, and nobody saves it."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: deque[float] = deque(maxlen=9)
        self.average = copy.deepcopy(self.model.module)
        self.level = 0

    def block(self, number: int) -> torch.Tensor:
        loss = super().block(number)
        self.losses.append(number)
        self.level += 1
        if len(self.losses) == 9:
            self.optimizer.param_groups[0]["lr"] = 0.003
        return loss


class LeavesActivations(Plain):
    """A hook's activations are dropped at the end of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        inner: Any = self.model.module
        inner[1].register_forward_hook(lambda _, __, found: self.seen.append(found))

    def block(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.batch(number))
        loss = loss + sum(each.square().sum() for each in self.seen)
        loss.backward()
        self.happens()
        self.optimizer.step()
        self.seen.clear()
        return loss.detach()


RIGHT: tuple[type[Plain], ...] = (
    LateBuffer,
    Grown,
    HeldTwice,
    BuffersNobodyCanFill,
    KeptGenerators,
    UnusedGradients,
    StepsBetweenPasses,
)
"""Loops that end, after the loss of a rank, with the parameters of one process alone."""
NAMED: tuple[type[Plain], ...] = (PrivateCounter, OtherName)
"""Loops whose steps do not come back as they were."""
WARNED: tuple[type[Plain], ...] = (DecidesLater,)
"""Loops of which a line says what a later step may depend on."""
