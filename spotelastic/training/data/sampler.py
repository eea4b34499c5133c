"""Provides `ElasticSampler`, which shares out batches among a number of ranks that may change.

    sampler = se.ElasticSampler(dataset, global_batch=64)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    ...
    for rows, labels in loader:                  # this rank's share of one global batch
        for micro in se.microbatches(sampler.batch, 16):
            with nullcontext() if micro.last else model.no_sync():
                loss = loss_of(model(rows[micro.rows]), labels[micro.rows])     # a mean
                (loss * micro.weight).backward()
        optimizer.step()
        step += 1
        checkpoint.step(step)                    # moves the cursor

All ranks have one cursor, and the global batch stays the same. A loader may be ahead of the loop;
only steps move the cursor.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import Sampler

from spotelastic.errors import UsageError
from spotelastic.model.in_place import AUDIT
from spotelastic.training.data import audit, randomness, sum_tree
from spotelastic.training.data.audit import AuditPlan
from spotelastic.training.data.loader_passes import Pass, Passes

if TYPE_CHECKING:
    from spotelastic.training.exact.pieces import Pieces

MOST_VIRTUAL_RANKS = 1024


@dataclass(frozen=True, slots=True)
class Position:
    """Where a sampler was when a step began."""

    epoch: int
    consumed: int
    begun: bool
    """Whether the loader had begun at it: one that begins there again draws no random number."""


@dataclass(slots=True)
class Microbatch:
    """A piece of a rank's share of a global batch.

    The mean loss over the rows is multiplied by `weight` and added up over all pieces. Averaged
    over the ranks as DDP and FSDP do, that is the mean loss over the global batch. With virtual
    ranks it is summed over the ranks instead.
    """

    rows: slice
    """Rows within the share."""
    weight: float
    last: bool
    """Whether its backward pass exchanges gradients. Each rank has exactly one such piece."""
    loss: Any = None
    """With virtual ranks, set it to the piece's mean loss, and `sampler.loss` is that of all."""


Rank = int | Callable[[], int] | None
"""A rank or a number of ranks, or what returns the present one."""
Place = tuple[int, int]
"""An epoch, and the samples of it that come before a batch."""


def microbatches(
    global_batch: int,
    most: int | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
) -> tuple[Microbatch, ...]:
    """Split this rank's share of `global_batch` samples into pieces of at most `most` rows.

    Each piece has `rows` (a slice of the share), a `weight` for its mean loss, and `last`, which is
    True for the piece whose backward pass exchanges gradients. Shares differ by one row at most. A
    rank that has no sample of an epoch's last batch gets one row of weight 0, so that it takes part
    in the exchange. If the data-parallel group is not the whole job, pass its `rank` and
    `world_size`.
    """
    rank, world_size = _place(rank, world_size)
    size = len(range(rank, global_batch, world_size))
    if not size:
        return (Microbatch(slice(0, 1), 0.0, True),)
    at_once = most or size
    return tuple(
        Microbatch(
            slice(start, min(start + at_once, size)),
            (min(start + at_once, size) - start) * world_size / global_batch,
            start + at_once >= size,
        )
        for start in range(0, size, at_once)
    )


class ElasticSampler(Sampler[list[int]]):
    """A batch sampler for a number of ranks that changes.

    Pass it to `DataLoader(batch_sampler=...)`. It yields this rank's sample numbers, one list for
    each step. In an epoch every sample comes exactly once, however often the number of ranks
    changes. A step takes `global_batch` samples over all ranks. The order depends on `seed` and the
    epoch alone. The last step of an epoch takes the samples that are left; with `drop_last=True`
    they are left out of that epoch.

    Its state is the same on all ranks: epoch, seed and the samples consumed. A `Checkpointer` whose
    state contains it moves it by one batch at every `step`. Without one, call `advance()` after
    each step. A step that does not match the batches taken from the loader is refused, unless
    `check` is False.
    """

    def __init__(
        self,
        data: Sized | int,
        global_batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: Rank = None,
        world_size: Rank = None,
        check: bool = True,
        virtual_ranks: int | None = None,
    ) -> None:
        """Make a sampler. `data` is the data set, or its number of samples.

        `rank` and `world_size` are those of the data-parallel group, where that is not the whole
        job; as functions, they are asked for each pass over the data. Raises `UsageError` where
        there are too few samples for a batch.

        With `virtual_ranks`, a global batch is cut into that many pieces, each of which is computed
        in the same way whichever rank has it: parameters are the same, bit for bit, for any number
        of ranks. The loop goes through `microbatches()` of the sampler then.
        """
        self.size = data if isinstance(data, int) else len(data)
        self.global_batch = global_batch
        self.seed = seed
        self.epoch = 0
        self.consumed = 0
        """Samples of this epoch that steps have been made of, on all ranks together."""
        self.left_out: set[Place] = set()
        """Batches that no step is made of: the epoch, and the samples of it that come before."""
        self._shuffle = shuffle
        self._place = rank, world_size
        self._check = check
        self._passes = Passes()
        self._resumed = False
        """Whether the run resumed in mid-epoch, and has taken no batch since."""
        self._begun_in: int | None = None
        """The epoch in which a pass over the sampler was begun last."""
        self._before: torch.Tensor | None = None
        """torch's generator when a loader begins to be made, after a resume in mid-epoch."""
        self.virtual_ranks = virtual_ranks
        self.audits = int(os.environ.get(AUDIT) or 0)
        """Steps of which one has a virtual rank computed again (`--audit`); 0: none has."""
        self.pieces: Pieces | None = None
        """What computes and sums them; set by `checkpoint.steps()`."""
        self.dealt_alone = False
        """Whether the last batch was dealt out before that was set."""
        self._usable = self.size - self.size % global_batch if drop_last else self.size
        if global_batch < 1 or self._usable < 1:
            raise UsageError(
                f"a global batch of {global_batch} cannot be made of {self.size} samples"
                + (" with drop_last" if drop_last else "")
            )
        if virtual_ranks is None:
            return
        if not 1 <= virtual_ranks <= min(global_batch, MOST_VIRTUAL_RANKS):
            raise UsageError(
                f"virtual_ranks={virtual_ranks} is not between 1 and "
                f"{min(global_batch, MOST_VIRTUAL_RANKS)}: each needs a sample of the global batch"
            )
        if rank is not None or world_size is not None:
            raise UsageError(
                "virtual_ranks are computed by all ranks of the job: leave rank and world_size out"
            )

    @property
    def batch(self) -> int:
        """Number of samples in the current step, over all ranks."""
        return min(self.global_batch, self._usable - self.consumed)

    @property
    def loss(self) -> torch.Tensor | None:
        """The mean of the losses that the pieces of the last step were given, over all ranks.

        It is not a number where a piece was given none.
        """
        return None if self.pieces is None else self.pieces.loss

    def microbatches(self, most: int | None = None) -> Iterator[Microbatch]:
        """Go through this rank's share of the current step's batch, piece by piece.

        The pieces have at most `most` rows. With virtual ranks there is one for each that this rank
        computes, and `most` is not asked: after the last one, the gradients are the sums over all
        ranks. Raises `UsageError` for virtual ranks outside of a step of `checkpoint.steps()`.
        """
        if self.virtual_ranks is None:
            rank, world_size = place_of(self)
            return iter(microbatches(self.batch, most, rank=rank, world_size=world_size))
        if self.pieces is None:
            raise UsageError(
                "virtual_ranks: call microbatches() within a step of checkpoint.steps(), of a "
                "Checkpointer whose state has the model, the optimizer and this sampler"
            )
        return self.pieces.go_through()

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float
    ) -> torch.Tensor:
        """Scale gradients so that their 2-norm is at most `max_norm`. Returns the norm before.

        As `torch.nn.utils.clip_grad_norm_`, but the norm of a sharded model's gradients is the
        same, bit for bit, on any number of ranks. With virtual ranks only, once
        `microbatches()` has come to its end.
        """
        if self.pieces is None:
            raise UsageError(
                "clip_grad_norm_() of the sampler is for virtual ranks: without them use "
                "torch.nn.utils.clip_grad_norm_"
            )
        return self.pieces.clip_grad_norm_(parameters, max_norm)

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch."""
        return (self._usable + self.global_batch - 1) // self.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches from the cursor to the end of the epoch, without moving the cursor.

        Each DataLoader that begins draws a seed from torch's generator. An uninterrupted run draws
        none in mid-epoch, so the draw of a run that resumes there is undone.
        """
        if self._resumed and self._before is None:
            self._before = torch.get_rng_state()
        self._begun_in = self.epoch
        return self._batches(self._passes.begin())

    def _batches(self, under_way: Pass) -> Iterator[list[int]]:
        if self._before is not None:
            torch.set_rng_state(self._before)
        self._forget_resuming()
        rank, world_size = place_of(self)
        epoch = self.epoch  # steps may be in the next one before this pass has come to its end
        order = Permutation(self.size, self.seed, epoch) if self._shuffle else None
        for start in range(self.consumed, self._usable, self.global_batch):
            if under_way.is_over:
                return  # the other batches are no longer this rank's
            if (epoch, start) in self.left_out:
                continue
            end = min(start + self.global_batch, self._usable)
            positions = self._share((epoch, start), end, rank, world_size)
            under_way.drawn += 1
            found = (order(positions) if order else positions).tolist()
            yield found if self.virtual_ranks is None else SeededRows(found, self.seed, epoch)

    def _share(self, place: Place, end: int, rank: int, world_size: int) -> NDArray[np.int64]:
        """Return which samples of a batch are a rank's, as places in the epoch's order.

        A rank without a share gets the first sample, for a microbatch of weight 0.
        """
        _, start = place
        if self.virtual_ranks is None:
            own = np.arange(start + rank, end, world_size)
        else:
            leaves = min(self.virtual_ranks, end - start)
            self.dealt_alone = self.pieces is None
            if self.pieces is None:
                every = sum_tree.shares(sum_tree.cuts(leaves, world_size))
            else:
                every = self.pieces.shares(leaves, world_size)
            its = (sum_tree.rows(leaf, leaves, end - start) for leaf in every[rank])
            own = np.array([start + row for rows in its for row in rows], dtype=np.int64)
            again = self.audited(place, every)
            if again is not None and rank in again.again and rank != again.owner:
                own = own if own.size else np.asarray([start])
                of_audit = sum_tree.rows(again.leaf, leaves, end - start)
                own = np.concatenate([own, start + np.arange(of_audit.start, of_audit.stop)])
        return own if own.size else np.asarray([start])

    def audited(self, place: Place, shares: Sequence[range]) -> AuditPlan | None:
        """Return which virtual rank of a batch is computed again, and by whom; None: none is."""
        return audit.plan(self.seed, place, self.audits, shares)

    def advance(self) -> None:
        """Move past the current batch: a step was made of it, or it was skipped or accumulated."""
        if self._check:
            self._passes.check()
        self._passes.stepped()
        self._forget_resuming()
        self._pass_by()

    def _pass_by(self) -> None:
        """Go on to the next batch that is not left out."""
        while True:
            self.consumed += self.batch
            if self.consumed >= self._usable:
                self.epoch, self.consumed = self.epoch + 1, 0
            if (self.epoch, self.consumed) not in self.left_out:
                return

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch. Changes nothing within that epoch."""
        if epoch != self.epoch:
            self.epoch, self.consumed = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data."""
        return {
            "epoch": self.epoch,
            "seed": self.seed,
            "consumed": self.consumed,
            "size": self.size,
            **({} if self.virtual_ranks is None else {"virtual_ranks": self.virtual_ranks}),
            **({"left_out": sorted(map(list, self.left_out))} if self.left_out else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position.

        Raises `UsageError` if the size of the data has changed within an epoch, or the number of
        virtual ranks at all.

        Batches that were left out since the state was saved stay left out.
        """
        if (before := state.get("virtual_ranks", self.virtual_ranks)) != self.virtual_ranks:
            raise UsageError(
                f"the state was saved with virtual_ranks={before}, and the sampler has "
                f"{self.virtual_ranks}: what it computes would not be the same"
            )
        if state["size"] != self.size and state["consumed"]:
            raise UsageError(
                f"the data set has {self.size} samples, but had {state['size']} when the state was "
                "saved: an epoch cannot go on with other data than it began with"
            )
        self.epoch, self.seed = state["epoch"], state["seed"]
        self.consumed = state["consumed"]
        if self.consumed >= self._usable:  # Another global batch may leave more of the epoch out.
            self.epoch, self.consumed = self.epoch + 1, 0
        self.left_out |= set(map(tuple, state.get("left_out", ())))
        if (self.epoch, self.consumed) in self.left_out:
            self._pass_by()
        self._resumed, self._before = self.consumed > 0, None

    def _forget_resuming(self) -> None:
        self._resumed, self._before = False, None


# -- for the loop, which begins steps again and meets other ranks ----------------------------------


def place_of(sampler: ElasticSampler) -> tuple[int, int]:
    """Return this rank's number, and the number of ranks, among which it deals out batches."""
    return _place(*(given() if callable(given) else given for given in sampler._place))


def names_ranks(sampler: ElasticSampler) -> bool:
    """Return whether it was given a rank or a number of ranks, which it keeps."""
    return any(isinstance(given, int) for given in sampler._place)


def waits(sampler: ElasticSampler) -> bool:
    """Return whether a batch was taken that no step was made of yet, where that is known."""
    return any(batches > 0 for batches in sampler._passes.waiting)


def refuse_ended(sampler: ElasticSampler) -> None:
    """Raise `UsageError` where a batch was taken of a pass that had ended.

    That pass was dealt out to other ranks.
    """
    sampler._passes.refuse_ended()


def left_out(values: Mapping[str, Any]) -> dict[str, set[Place]]:
    """Return the batches that are left out, by the sampler's name."""
    return {
        name: value.left_out
        for name, value in values.items()
        if isinstance(value, ElasticSampler) and value.left_out
    }


def leave_out(values: Mapping[str, Any], told: Mapping[str, Iterable[Place]]) -> None:
    """Leave batches out from now on, by the sampler's name."""
    for name, places in told.items():
        sampler = values.get(name)
        if isinstance(sampler, ElasticSampler):
            sampler.left_out.update(places)
            if (sampler.epoch, sampler.consumed) in sampler.left_out:
                sampler._pass_by()


def position(sampler: ElasticSampler) -> Position:
    """Return where the sampler is, before a step begins."""
    begun = sampler._resumed or sampler._begun_in == sampler.epoch
    return Position(sampler.epoch, sampler.consumed, begun)


def go_back(sampler: ElasticSampler, to: Position) -> None:
    """Go back to where a step began that is begun again. All passes end."""
    sampler.epoch, sampler.consumed = to.epoch, to.consumed
    sampler._passes.end()
    sampler._begun_in = None
    sampler._resumed, sampler._before = to.begun, None


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size as given, or of the process group, or of torchrun's variables."""
    if dist.is_available() and dist.is_initialized():
        found = dist.get_rank(), dist.get_world_size()
    else:
        found = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    own = found[0] if rank is None else rank
    size = found[1] if world_size is None else world_size
    if not 0 <= own < size:
        raise UsageError(f"rank {own} is not in a world of {size}")
    return own, size


class SeededRows(list[int]):
    """Numbers of samples, each of which is loaded with random numbers of its own.

    So what a data set draws for a sample, to augment it, depends on seed, epoch and sample alone,
    and neither on the loader's worker nor on what else it loads. Loaders go through the list in the
    process that loads, one sample after the other.
    """

    def __init__(self, rows: Iterable[int], seed: int, epoch: int) -> None:
        super().__init__(rows)
        self._of = seed, epoch

    def __reduce__(self) -> tuple[type["SeededRows"], tuple[list[int], int, int]]:
        """Return what it is made of in a loader's worker."""
        return SeededRows, (self[:], *self._of)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers. What is drawn for them is drawn from no generator of the script's."""
        held = randomness.capture()
        seed, epoch = self._of
        try:
            for row in super().__iter__():
                randomness.derive(seed, f"{epoch}/sample", row, often=True)
                yield row
        finally:
            randomness.apply(held)


ROUNDS = 8
"""Rounds of the Feistel network."""


class Permutation:
    """A permutation of 0 to `size` - 1, the same for equal (size, seed, epoch) on any machine.

    It is not stored: a Feistel network over the smallest power of two that holds the size, with
    cycle walking: an image beyond the size is sent through again until it falls inside (Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Every position costs the same.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._right_bits = np.uint64(bits - bits // 2)
        self._left = np.uint64((1 << bits // 2) - 1)
        self._right = np.uint64((1 << int(self._right_bits)) - 1)
        digest = hashlib.shake_256(f"{seed}/{epoch}".encode()).digest(8 * ROUNDS)
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements at these positions."""
        found = self._encipher(positions.astype(np.uint64))
        while (outside := found >= self.size).any():
            found[outside] = self._encipher(found[outside])
        return found.astype(np.int64)

    def _encipher(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._right_bits, values & self._right
        for number, key in enumerate(self._keys):
            if number % 2:
                right = right ^ (_mix(left ^ key) & self._right)
            else:
                left = left ^ (_mix(right ^ key) & self._left)
        return (left << self._right_bits) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64, by which each bit of input affects each bit of output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
