"""Goes through a step's virtual ranks: each computes the same numbers whichever rank computes it.

A virtual rank has its rows of the global batch, its random numbers, and batch norms that begin with
what they had when the step began. Gradients, and what batch norms have seen, are summed in the
order of the virtual ranks; so parameters do not depend on how many ranks there are, to the last
bit, where kernels do not.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spotelastic import torch_names
from spotelastic.errors import UsageError
from spotelastic.training.data import randomness
from spotelastic.training.data.audit import AuditPlan
from spotelastic.training.data.sampler import ElasticSampler, Microbatch, place_of
from spotelastic.training.data.sum_tree import cuts, rows, shares, takes, turns
from spotelastic.training.exact.batch_norm import BatchNorms
from spotelastic.training.exact.exchange import Exchange, Values

if TYPE_CHECKING:
    from spotelastic.training.exact.sharded import ShardedSums

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
        """`compare` takes what this rank came to in an audit, as hashes by `digest`.

        All ranks call it.
        """
        self._sampler = sampler
        self._trained = trained
        self._compare, self._digest = compare, digest
        self._exchange: Exchange | None = None
        self._sharded: ShardedSums | None = None
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
        self.norm: Tensor | None = None

    def begin(self, step: int) -> None:
        """Begin a step, of which nothing is summed."""
        self.are_summed, self._passes = False, 0
        self.loss = self.norm = None
        self._measures = step % MEASURED_EVERY == 0

    def shares(self, leaves: int, ranks: int) -> list[range]:
        """Return which virtual ranks each rank computes.

        Ranks that share parameters compute at the same time, whatever each takes.
        """
        if _are_sharded(self._trained().parameters):
            return turns(leaves, ranks)
        return shares(self._bounds(leaves, ranks))

    def _bounds(self, leaves: int, ranks: int) -> tuple[int, ...]:
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
        now, new = self._bounds(leaves, ranks), cuts(leaves, ranks, times)
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

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
        """Scale gradients to a norm of at most `max_norm`. Returns the norm that they had."""
        from spotelastic.training.exact.sharded import clip_grad_norm_

        found = self.norm = clip_grad_norm_(parameters, max_norm)
        if self._sharded is not None:
            self._sharded.note_clipped()
        return found

    def go_through(self) -> Iterator[Microbatch]:
        """Yield the virtual ranks of this rank. At the end gradients are those of all ranks."""
        self.are_summed, self.loss = False, None
        self._passes += 1
        trained, held = self._trained(), randomness.capture()
        exchange = self._look(trained)
        try:
            with _without_exchange(trained.wrappers):
                yield from self._each(exchange, self._sharded)
        finally:
            exchange.end()
            randomness.apply(held)

    def _each(self, exchange: Exchange, sharded: "ShardedSums | None") -> Iterator[Microbatch]:
        share = self._share(sharded is not None)
        exchange.begin(share.every)
        self._norms.begin()
        if sharded:
            sharded.begin()
        place = self._sampler.epoch, self._sampler.consumed
        audit = self._sampler.audited(place, share.every)
        told = [] if audit is None else (yield from self._again(exchange, audit, share))
        others = list[tuple[int, Values]]()
        for turn, leaf in enumerate(share.turns):
            is_last = turn == len(share.turns) - 1
            if sharded:
                sharded.begin_pass(share.of_turn(turn), is_last)
            if leaf is None:  # it meets the others, in DDP's first forward pass or in FSDP's
                yield Microbatch(slice(0, 1), 0.0, True)
            else:
                is_compared = audit is not None and leaf == audit.leaf
                piece = Microbatch(*share.piece(leaf), is_last or sharded is not None)
                self._begin(share, leaf)
                if is_last and not is_compared:
                    exchange.send_as_they_come(leaf)
                begun = self._now()
                yield piece
                took = self._now() - begun
                if is_compared:
                    told.append(exchange.digest(self._digest))
                if not is_last:
                    exchange.put(leaf)
                seen = [*self._seen(piece, leaf, took), *self._norms.changes(piece.weight)]
                others.append((leaf, seen))
            if sharded:
                sharded.end_pass(is_last)
        self.loss, took_all, *changes = exchange.finish(share.turns[-1], others)
        self._norms.finish(changes)
        if sharded:
            sharded.finish()
        elif took_all is not None:
            self._measure(took_all, share.every)
        self.are_summed = True
        if audit is not None:
            self._compare(audit, told)

    def _share(self, at_once: bool) -> "_RankShare":
        rank, world = place_of(self._sampler)
        size = self._sampler.batch
        leaves = min(self._sampler.virtual_ranks or 1, size)
        seed = f"{self._sampler.epoch}/{self._sampler.consumed}/{self._passes}"
        return _RankShare(rank, size, leaves, self.shares(leaves, world), at_once, seed)

    def _begin(self, share: "_RankShare", leaf: int) -> None:
        """Begin a virtual rank, with its random numbers and what batch norms begin with."""
        randomness.derive(self._sampler.seed, share.seed, leaf, often=True)
        self._norms.put_back()

    def _again(
        self, exchange: Exchange, audit: AuditPlan, share: "_RankShare"
    ) -> Generator[Microbatch, None, list[bytes]]:
        """Compute an audited virtual rank, if this rank is asked. Returns what it came to."""
        told = list[bytes]()
        for _ in range(audit.again.count(share.rank)):
            if share.rank == audit.owner:
                its, weight = share.piece(audit.leaf)
            else:  # its rows come behind this rank's own ones, or the one in their place
                weight = len(rows(audit.leaf, share.leaves, share.size)) / share.size
                its = slice(share.behind, share.behind + round(weight * share.size))
            self._begin(share, audit.leaf)
            yield Microbatch(its, weight, False)
            told.append(exchange.digest(self._digest))
            exchange.forget()
        return told

    def _measure(self, took: Tensor, every: Sequence[range]) -> None:
        """Note what ranks take for a virtual rank, in a step that is measured."""
        if self._measures and len(every) > 1 and all(every):
            each = took.tolist()
            taken = (statistics.median(each[its.start : its.stop]) for its in every)
            self._measured.append(tuple(max(one, 1e-6) for one in taken))

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
            if not parameters:
                raise UsageError("virtual_ranks: the state has no parameters that are trained")
            self._sharded = self._sums_of_shards(trained, parameters)
            self._norms = BatchNorms(trained.modules)
            zeros = torch.zeros((self._sampler.virtual_ranks or 1) + 1, device=parameters[0].device)
            self._like = [zeros[:1], zeros[1:]]
            whole = [each for each in parameters if not isinstance(each, DTensor)]
            self._exchange = Exchange(whole, [*self._like, *self._norms.like])
            self._of = of
        return self._exchange

    def _sums_of_shards(
        self, trained: Trained, parameters: Sequence[Tensor]
    ) -> "ShardedSums | None":
        if not _are_sharded(parameters):
            return None
        from spotelastic.training.exact import sharded  # importing FSDP takes most of a second

        if self._sampler.audits:
            raise UsageError(
                "--audit: a model is sharded, so that no other rank has the whole gradient of a "
                "virtual rank to compare: leave --audit out"
            )
        if self._sampler.dealt_alone:
            raise UsageError(
                "virtual_ranks: a batch of a sharded model was taken from the loader before "
                "checkpoint.steps() began: take batches in its loop"
            )
        return sharded.ShardedSums(trained.modules, trained.optimizers, parameters)


def _are_sharded(parameters: Iterable[Tensor]) -> bool:
    return any(isinstance(each, DTensor) for each in parameters)


@dataclass(frozen=True)
class _RankShare:
    """What a rank computes of a step."""

    rank: int
    size: int
    """Rows of the global batch."""
    leaves: int
    every: Sequence[range]
    """Each rank's virtual ranks."""
    at_once: bool
    """Whether all ranks compute at the same time."""
    seed: str

    @property
    def turns(self) -> list[int | None]:
        """The virtual ranks of this rank; None: it has none, and computes with the others."""
        own = self.every[self.rank]
        missing = len(self.every[0]) - len(own) if self.at_once else not own
        return [*own, *itertools.repeat(None, missing)]

    def of_turn(self, turn: int) -> range:
        """Return the virtual ranks that all ranks compute in a turn, where they do so at once."""
        ranks = len(self.every)
        return range(turn * ranks, min((turn + 1) * ranks, self.leaves))

    def piece(self, leaf: int) -> tuple[slice, float]:
        """Return which of this rank's rows are a virtual rank's, and its part of the batch."""
        own = self.every[self.rank]
        begin = sum(len(self._rows(each)) for each in own if each < leaf)
        its = len(self._rows(leaf))
        return slice(begin, begin + its), its / self.size

    @property
    def behind(self) -> int:
        """How many rows this rank has of its own, or in their place."""
        return max(1, sum(len(self._rows(each)) for each in self.every[self.rank]))

    def _rows(self, leaf: int) -> range:
        return rows(leaf, self.leaves, self.size)


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
