"""Sums gradients over all ranks in the order of the virtual ranks, in buckets, during backward.

Each rank owns a slice of a bucket. It is sent the parts of that slice by all, adds them up as the
tree says, and sends the sum to all. A rank that has one part sends what a ring sends, and more
where it has several.

Must never happen: ranks add up the same numbers in another order. The order is that of the tree
alone, whatever arrives first; and what a bucket holds is the same on all ranks, as are the places
of the slices.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spotelastic import torch_names
from spotelastic.errors import UsageError
from spotelastic.training.data.sum_tree import SumTree, parts_of

BUCKET = 25 << 20
"""Bytes of a bucket, as DistributedDataParallel has them."""
Values = list[Tensor | None]
"""Of each tensor of a bucket, what one virtual rank adds to its sum; None: it has nothing."""


class Bucket:
    """Tensors of one type on one device, whose sums travel together."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        self.like = like
        self.size = sum(each.numel() for each in like)
        self.missing = 0
        """Tensors whose value of the last virtual rank is not there yet."""
        self.begin(())

    def begin(self, shares: Sequence[range]) -> None:
        """Forget what was put in; ranks have these shares of the virtual ranks."""
        self._tree = SumTree[Values](_add)
        self._layout = [parts_of(each) for each in shares]
        self._work: Any = None
        self._incoming = self.like[0].new_zeros(0)
        self.is_sent = False
        self.missing = len(self.like)

    def put(self, leaf: int, values: Values) -> None:
        """Add what a virtual rank of this rank has. Its tensors are the bucket's from now on."""
        self._tree.put(leaf, values)

    def send(self) -> None:
        """Send each rank the parts of its slice. All ranks send their buckets in one order."""
        self.is_sent = True
        ranks = len(self._layout)
        if ranks == 1:
            return
        length = self._slice(ranks)
        parts = [self._flat(values, ranks * length) for values in self._tree.parts]
        sent = self.like[0].new_empty(0)
        if parts:
            sent = torch.stack(parts).view(len(parts), ranks, length).transpose(0, 1).reshape(-1)
        counts = [len(each) * length for each in self._layout]
        self._incoming = self.like[0].new_empty(sum(counts))
        self._work = dist.all_to_all_single(
            self._incoming, sent, counts, [len(parts) * length] * ranks, async_op=True
        )

    def gather(self) -> None:
        """Add up this rank's slice, and begin to send it to all."""
        if len(self._layout) == 1:
            return
        self._work.wait()
        length = self._slice(len(self._layout))
        places = [each for of_rank in self._layout for each in of_rank]
        arrived = zip(places, torch.split(self._incoming, length), strict=True)
        tree = SumTree[Tensor](Tensor.add_)
        for (level, number), values in sorted(arrived, key=lambda each: each[0][1] << each[0][0]):
            tree.put(number, values, level)
        self._incoming = self.like[0].new_empty(length * len(self._layout))
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        self._work = gather(self._incoming, tree.total().contiguous(), async_op=True)

    def sums(self) -> Values:
        """Return the sum of each tensor; None where no virtual rank has had a value for it."""
        if len(self._layout) == 1:
            return self._tree.total()
        self._work.wait()
        flags = self._incoming[self.size : self.size + len(self.like)]
        own = self._tree.parts
        if own and all(value is not None for value in own[0]):
            present = [True] * len(self.like)  # and nobody has to wait for a GPU
        else:
            present = [flag > 0 for flag in flags.tolist()]
        found, at = Values(), 0
        for each, is_there in zip(self.like, present, strict=True):
            end = at + each.numel()
            found.append(self._incoming[at:end].view(each.shape) if is_there else None)
            at = end
        return found

    def _slice(self, ranks: int) -> int:
        return -(-(self.size + len(self.like)) // ranks)

    def _flat(self, values: Values, length: int) -> Tensor:
        """Return the values one behind the other, whether each is there, and zeros."""
        there = [each for each in values if each is not None]
        if len(there) == len(values):
            flags = self.like[0].new_ones(len(values))
        else:
            flags = self.like[0].new_tensor([each is not None for each in values])
            pairs = zip(values, self.like, strict=True)
            there = [torch.zeros_like(like) if each is None else each for each, like in pairs]
        rest = self.like[0].new_zeros(length - self.size - len(values))
        return torch.cat([*(each.reshape(-1) for each in there), flags, rest])


class Exchange:
    """The buckets of some parameters, and of what else is summed with their gradients."""

    def __init__(self, parameters: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self._of_parameters = list(_buckets(range(len(parameters))[::-1], parameters))
        self._of_others = list(_buckets(range(len(others)), others))
        self._hooks: list[Any] = []
        self._before: Values = []
        """Gradients that were there before, to which the sums are added."""
        self._at = 0
        """Number of the bucket to send next."""

    def begin(self, shares: Sequence[range]) -> None:
        """Begin with no value. Gradients are taken from the parameters."""
        self.end()
        self._at = 0
        for bucket, _ in (*self._of_parameters, *self._of_others):
            bucket.begin(shares)
        self._before = [self._take(parameter) for parameter in self.parameters]

    def put(self, leaf: int) -> None:
        """Take the gradients that a virtual rank has computed."""
        for bucket, numbers in self._of_parameters:
            bucket.put(leaf, [self._take(self.parameters[each]) for each in numbers])

    def digest(self, of: Callable[[Tensor], bytes]) -> bytes:
        """Return a hash of the gradients that a virtual rank has computed, by that of a tensor."""
        found = hashlib.sha256()
        for parameter in self.parameters:
            gradient = parameter.grad
            found.update(b"-" if gradient is None else of(gradient))
        return found.digest()

    def forget(self) -> None:
        """Take gradients that do not count."""
        for parameter in self.parameters:
            self._take(parameter)

    def send_as_they_come(self, leaf: int) -> None:
        """Send each bucket during a backward pass, once the bucket has all its gradients.

        It is the backward pass of this rank's last virtual rank.
        """
        for number, (bucket, numbers) in enumerate(self._of_parameters):
            for each in numbers:
                hook = self._hook(number, bucket, leaf)
                self._hooks.append(
                    self.parameters[each].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                )

    def finish(self, leaf: int | None, others: Sequence[tuple[int, Values]]) -> Values:
        """Set all gradients to their sums. Returns the sums of what else there is.

        `leaf` is this rank's last virtual rank; None: it has none, and its gradients do not count.
        `others` are what each of its virtual ranks adds to these.
        """
        self.end()
        for bucket, numbers in self._of_parameters[self._at :]:
            found = [self._take(self.parameters[each]) for each in numbers]
            if leaf is not None:
                bucket.put(leaf, found)
            bucket.send()
        for bucket, numbers in self._of_others:
            for of, values in others:
                bucket.put(of, [values[each] for each in numbers])
            bucket.send()
        every = (*self._of_parameters, *self._of_others)
        for bucket, _ in every:
            bucket.gather()
        for bucket, numbers in self._of_parameters:
            for each, total in zip(numbers, bucket.sums(), strict=True):
                self.parameters[each].grad = _sum(self._before[each], total)
        sums = {
            each: total
            for bucket, numbers in self._of_others
            for each, total in zip(numbers, bucket.sums(), strict=True)
        }
        return [sums[each] for each in sorted(sums)]

    def end(self) -> None:
        """Look at no backward pass any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _hook(self, number: int, bucket: Bucket, leaf: int) -> Any:
        def has_gradient(_: Tensor) -> None:
            if bucket.is_sent:
                raise UsageError(
                    "virtual_ranks: there was a second backward pass in one turn of "
                    "`for micro in sampler.microbatches()`: add up its losses, or go through "
                    "microbatches() once for each"
                )
            bucket.missing -= 1
            while self._at < len(self._of_parameters):
                ready, numbers = self._of_parameters[self._at]
                if ready.missing:
                    return
                ready.put(leaf, [self.parameters[each].grad for each in numbers])
                ready.send()
                self._at += 1

        return has_gradient

    @staticmethod
    def _take(parameter: Tensor) -> Tensor | None:
        found, parameter.grad = parameter.grad, None
        if found is not None and found.layout is not torch.strided:
            raise UsageError(
                "virtual_ranks: a gradient is sparse: give the Embedding sparse=False, or leave "
                "virtual_ranks out"
            )
        return None if found is None else found.detach()


def _buckets(order: Iterable[int], tensors: Sequence[Tensor]) -> Iterable[tuple[Bucket, list[int]]]:
    """Yield buckets, and which of the tensors each has."""
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number in order:
        alike.setdefault((tensors[number].dtype, tensors[number].device), []).append(number)
    for numbers in alike.values():
        held, size = list[int](), 0
        for number in numbers:
            if held and size > BUCKET:
                yield Bucket([tensors[each] for each in held]), held
                held, size = [], 0
            held.append(number)
            size += tensors[number].nbytes
        yield Bucket([tensors[each] for each in held]), held


def _add(left: Values, right: Values) -> Values:
    """Return the sums of two virtual ranks' values, in the left one's memory."""
    both = [
        (one, other)
        for one, other in zip(left, right, strict=True)
        if one is not None and other is not None
    ]
    torch_names.add_all([one for one, _ in both], [other for _, other in both])
    return [one if one is not None else other for one, other in zip(left, right, strict=True)]


def _sum(before: Tensor | None, total: Tensor | None) -> Tensor | None:
    if before is None or total is None:
        return total if before is None else before
    return before.add_(total)
