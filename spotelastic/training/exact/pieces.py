"""Goes through a step's virtual ranks: each computes the same numbers whichever rank computes it.

A virtual rank has its rows of the global batch, its random numbers, and batch norms that begin with
what they had when the step began. Gradients, and what batch norms have seen, are summed in the
order of the virtual ranks; so parameters do not depend on how many ranks there are, to the last
bit, where kernels do not.
"""

import math
import statistics
import time
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
from spotelastic.training.data.audit import AuditPlan
from spotelastic.training.data.sampler import ElasticSampler, Microbatch, place_of
from spotelastic.training.data.sum_tree import cuts, rows, shares, takes
from spotelastic.training.exact.batch_norm import BatchNorms
from spotelastic.training.exact.exchange import Exchange, Values

MEASURED_EVERY = 25
"""Steps from one that is measured to the next."""
WORTH = 1.1
"""Shares are changed where a step gets so many times as fast."""


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

    def __init__(
        self,
        sampler: ElasticSampler,
        trained: Callable[[], Trained],
        compare: Callable[[AuditPlan, Sequence[bytes]], None],
        digest: Callable[[Tensor], bytes],
    ) -> None:
        """`compare` takes what this rank came to in an audit, as hashes by `digest`. All ranks call
        it.
        """
        self._sampler = sampler
        self._trained = trained
        self._compare, self._digest = compare, digest
        self._exchange: Exchange | None = None
        self._norms = BatchNorms([])
        self._like: list[Tensor] = []
        self._of: Any = None
        self._passes = 0
        self._measures = False
        self._times: tuple[float, ...] = ()
        """Seconds that each rank takes for a virtual rank; empty: all take the same."""
        self._measured: list[tuple[float, ...]] = []
        """The same of steps that were measured since."""
        self.are_summed = False
        """Whether the gradients are those of all virtual ranks."""
        self.loss: Tensor | None = None

    def begin(self, step: int) -> None:
        """Begin a step, of which nothing is summed."""
        self.are_summed, self._passes, self.loss = False, 0, None
        self._measures = step % MEASURED_EVERY == 0

    def bounds(self, leaves: int, ranks: int) -> tuple[int, ...]:
        """Return which virtual ranks each rank computes."""
        return cuts(leaves, ranks, self._times if len(self._times) == ranks else ())

    def forget_times(self) -> None:
        """Share evenly: the ranks have changed. All ranks call it."""
        self._times, self._measured = (), []

    def share_by_times(self) -> bool:
        """Share by what ranks took in the two steps that were measured last, if both say so.

        Returns whether shares have changed. All ranks call it after the same step, and have
        measured the same.
        """
        if len(self._measured) < 2:
            return False
        times = tuple(map(statistics.mean, zip(*self._measured, strict=True)))
        leaves, ranks = self._sampler.virtual_ranks or 1, len(times)
        now, new = self.bounds(leaves, ranks), cuts(leaves, ranks, times)
        gains = [takes(now, each) / takes(new, each) for each in self._measured]
        del self._measured[0]
        if min(gains) < WORTH:
            return False
        self._times, self._measured = times, []
        return True

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
        bounds = self.bounds(leaves, world)
        own = range(bounds[rank], bounds[rank + 1])
        seed = f"{self._sampler.epoch}/{self._sampler.consumed}/{self._passes}"
        exchange.begin(bounds)
        norms.begin()
        place = self._sampler.epoch, self._sampler.consumed
        audit, told = self._sampler.audited(place, bounds), list[bytes]()
        for _ in range(audit.again.count(rank) if audit is not None else 0):
            assert audit is not None
            its = rows(audit.leaf, leaves, size)
            # What others compute comes behind this rank's own rows, or the one in their place.
            first = rows(own.start, leaves, size).start if rank == audit.owner else its.start
            behind = 0 if rank == audit.owner else max(1, _rows_of(own, leaves, size))
            at = its.start - first + behind
            randomness.derive(self._sampler.seed, seed, audit.leaf, often=True)
            norms.put_back()
            yield Microbatch(slice(at, at + len(its)), len(its) / size, False)
            told.append(exchange.digest(self._digest))
            exchange.forget()
        for leaf in own:
            its, first = rows(leaf, leaves, size), rows(own.start, leaves, size).start
            weight, last = len(its) / size, leaf == own[-1]
            piece = Microbatch(slice(its.start - first, its.stop - first), weight, last)
            randomness.derive(self._sampler.seed, seed, leaf, often=True)
            norms.put_back()
            is_audited = audit is not None and leaf == audit.leaf
            if last and not is_audited:
                exchange.send_as_they_come(leaf)
            begun = self._now()
            yield piece
            took = self._now() - begun
            if is_audited:
                told.append(exchange.digest(self._digest))
            if not last:
                exchange.put(leaf)
            others.append((leaf, [*self._seen(piece, leaf, took), *norms.changes(weight)]))
        if not own:
            yield Microbatch(slice(0, 1), 0.0, True)  # DDP's first forward pass meets the others
        self.loss, took_all, *changes = exchange.finish(own[-1] if own else None, others)
        norms.finish(changes)
        if self._measures and took_all is not None and world > 1 and all(shares(bounds)):
            each = took_all.tolist()
            taken = (statistics.median(each[its.start : its.stop]) for its in shares(bounds))
            self._measured.append(tuple(max(one, 1e-6) for one in taken))
        self.are_summed = True
        if audit is not None:
            self._compare(audit, told)

    def _now(self) -> float:
        if self._measures and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return time.perf_counter()

    def _seen(self, piece: Microbatch, leaf: int, took: float) -> Values:
        """Return what else there is of a piece: its part of the loss, and the seconds it took."""
        loss, times = (each.clone() for each in self._like)
        if piece.loss is None:
            loss.fill_(math.nan)
        else:
            loss += torch.as_tensor(piece.loss).detach().float().reshape(1) * piece.weight
        times[leaf] = took
        return [loss, times]

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
            zeros = torch.zeros((self._sampler.virtual_ranks or 1) + 1, device=parameters[0].device)
            self._like = [zeros[:1], zeros[1:]]
            self._exchange = Exchange(parameters, [*self._like, *self._norms.like])
            self._of = of
        return self._exchange


def _rows_of(leaves: range, of: int, size: int) -> int:
    """Return how many rows of a batch of that size neighbouring leaves have."""
    return size * leaves.stop // of - size * leaves.start // of


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
