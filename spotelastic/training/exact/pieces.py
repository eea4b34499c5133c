"""Goes through a step's virtual ranks: each computes the same numbers whichever rank computes it.

A virtual rank has its rows of the global batch, its random numbers, and batch norms that begin with
what they had when the step began. Gradients, and what batch norms have seen, are summed in the
order of the virtual ranks; so parameters do not depend on how many ranks there are, to the last
bit, where kernels do not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spotelastic import torch_names
from spotelastic.errors import UsageError
from spotelastic.training.data import randomness
from spotelastic.training.data.sampler import ElasticSampler, Microbatch, place_of
from spotelastic.training.data.sum_tree import cuts, rows
from spotelastic.training.exact.batch_norm import BatchNorms
from spotelastic.training.exact.exchange import Exchange, Values


@dataclass
class Trained:
    """What a script trains."""

    modules: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    wrappers: Sequence[DistributedDataParallel]

    @property
    def parameters(self) -> list[Tensor]:
        """Each parameter once, as the optimizers have them."""
        groups = (group for each in self.optimizers for group in each.param_groups)
        of_optimizers = (each for group in groups for each in group["params"])
        of_modules = (each for module in self.modules for each in module.parameters())
        chosen = of_optimizers if self.optimizers else of_modules
        found = {id(each): each for each in chosen if each.requires_grad}
        return [*found.values()]


class Pieces:
    """The virtual ranks of one sampler."""

    def __init__(self, sampler: ElasticSampler, trained: Callable[[], Trained]) -> None:
        self._sampler = sampler
        self._trained = trained
        self._exchange: Exchange | None = None
        self._norms = BatchNorms([])
        self._of: Any = None
        self._passes = 0
        self.are_summed = False
        """Whether the gradients are those of all virtual ranks."""
        self.loss: Tensor | None = None

    def begin(self) -> None:
        """Begin a step, of which nothing is summed."""
        self.are_summed, self._passes, self.loss = False, 0, None

    def refuse_unsummed(self) -> None:
        """Raise `UsageError` where an optimizer would step with this rank's gradients alone."""
        if not self.are_summed:
            raise UsageError(
                "virtual_ranks: a step was made without all virtual ranks' gradients: compute them "
                "in `for micro in sampler.microbatches():`, in the block of the step, and leave "
                "that loop at its end only"
            )

    def go_through(self) -> Iterator[Microbatch]:
        """Yield the virtual ranks of this rank. At the end gradients are those of all ranks."""
        self.are_summed, self.loss = False, None
        self._passes += 1
        trained, held = self._trained(), randomness.capture()
        exchange = self._look(trained)
        try:
            with _without_exchange(trained.wrappers):
                yield from self._each(exchange)
        finally:
            exchange.end()
            randomness.apply(held)

    def _each(self, exchange: Exchange) -> Iterator[Microbatch]:
        rank, world = place_of(self._sampler)
        size, norms, others = self._sampler.batch, self._norms, list[tuple[int, Values]]()
        leaves = min(self._sampler.virtual_ranks or 1, size)
        bounds = cuts(leaves, world)
        own = range(bounds[rank], bounds[rank + 1])
        seed = f"{self._sampler.epoch}/{self._sampler.consumed}/{self._passes}"
        exchange.begin(bounds)
        norms.begin()
        for leaf in own:
            its, first = rows(leaf, leaves, size), rows(own.start, leaves, size).start
            weight, last = len(its) / size, leaf == own[-1]
            piece = Microbatch(slice(its.start - first, its.stop - first), weight, last)
            randomness.derive(self._sampler.seed, seed, leaf, often=True)
            norms.put_back()
            if last:
                exchange.send_as_they_come(leaf)
            yield piece
            if not last:
                exchange.put(leaf)
            others.append((leaf, [_loss(piece), *norms.changes(weight)]))
        if not own:
            yield Microbatch(slice(0, 1), 0.0, True)  # DDP's first forward pass meets the others
        self.loss, *changes = exchange.finish(own[-1] if own else None, others)
        norms.finish(changes)
        self.are_summed = True

    def _look(self, trained: Trained) -> Exchange:
        """Return what sums these gradients. Raises `UsageError` where that is not exact."""
        parameters = trained.parameters
        of = [id(each) for each in (*trained.modules, *parameters)]
        if self._exchange is None or self._of != of:
            if any(isinstance(each, DTensor) for each in parameters):
                raise UsageError("virtual_ranks: a model is sharded: this is for replicated models")
            if not parameters:
                raise UsageError("virtual_ranks: the state has no parameters that are trained")
            self._norms = BatchNorms(trained.modules)
            loss = torch.zeros(1, device=parameters[0].device)
            self._exchange = Exchange(parameters, [loss, *self._norms.like])
            self._of = of
        return self._exchange


def _loss(piece: Microbatch) -> Tensor | None:
    if piece.loss is None:
        return None
    loss = torch.as_tensor(piece.loss).detach().float()
    return loss.reshape(1) * piece.weight


@contextmanager
def _without_exchange(wrappers: Sequence[DistributedDataParallel]) -> Iterator[None]:
    """Have DDP exchange nothing in the block, as in its `no_sync()`."""
    before = [each.require_backward_grad_sync for each in wrappers]
    for each in wrappers:
        if torch_names.hooks_of(each):
            raise UsageError(
                "virtual_ranks: a DistributedDataParallel has a communication hook, which sums "
                "gradients in an order of its own: leave one of them out"
            )
        each.require_backward_grad_sync = False
    try:
        yield
    finally:
        for each, was in zip(wrappers, before, strict=True):
            each.require_backward_grad_sync = was
