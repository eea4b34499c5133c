"""What batch norms have seen in a step, as the mean over its virtual ranks.

Each virtual rank normalizes by its own rows. It begins with the running statistics that there were
when the step began, and what it changes of them is averaged, by the tree of the gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import SyncBatchNorm

from spotelastic import torch_names
from spotelastic.errors import UsageError

_STATISTICS = ("running_mean", "running_var")
_COUNT = "num_batches_tracked"


class BatchNorms:
    """The running statistics of some modules, and all other buffers, which nobody may change."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}
        self._norms: list[Any] = []
        self._others: list[tuple[str, torch.nn.Module]] = []
        for part in parts.values():
            if isinstance(part, SyncBatchNorm):
                raise UsageError(
                    "virtual_ranks: SyncBatchNorm waits for the other ranks in each forward pass: "
                    "use BatchNorm, which looks at the rows of its virtual rank"
                )
            if getattr(part, _COUNT, None) is not None:
                self._norms.append(part)
            else:
                self._others += [(name, part) for name, _ in part.named_buffers(recurse=False)]
        self._begun: list[Tensor] = []
        self._written: list[Any] = []

    @property
    def like(self) -> list[Tensor]:
        """What is summed: means, variances, and whether a norm has seen rows."""
        counts = (norm.running_mean.new_zeros(1) for norm in self._norms)
        return [*self._means(), *counts]

    def begin(self) -> None:
        """Note what there is when a step begins."""
        self._begun = [each.clone() for each in (*self._means(), *self._counts())]
        self._written = self._writes()

    @torch.no_grad()
    def put_back(self) -> None:
        """Begin another virtual rank."""
        for each, begun in zip((*self._means(), *self._counts()), self._begun, strict=True):
            each.copy_(begun)

    @torch.no_grad()
    def changes(self, weight: float) -> list[Tensor | None]:
        """Return by how much a virtual rank of this weight moves each mean.

        Raises `UsageError` where it has changed another buffer, of which nothing is known.
        """
        found = self._writes()
        for (name, part), now, then in zip(self._others, found, self._written, strict=True):
            if now != then:
                raise UsageError(
                    f"virtual_ranks: {type(part).__name__} changes its buffer {name} in the "
                    "forward pass, which then depends on how many nodes there are: leave "
                    "virtual_ranks out"
                )
        means, begun = self._means(), self._begun
        moved: list[Tensor | None] = [
            (now - then) * weight for now, then in zip(means, begun[: len(means)], strict=True)
        ]
        counts = zip(self._norms, begun[len(means) :], strict=True)
        return moved + [
            (norm.num_batches_tracked > then).reshape(1).to(norm.running_mean.dtype)
            for norm, then in counts
        ]

    @torch.no_grad()
    def finish(self, changes: Sequence[Tensor | None]) -> None:
        """Set the running statistics to the means over all virtual ranks."""
        self.put_back()
        means = self._means()
        for each, change in zip(means, changes[: len(means)], strict=True):
            if change is not None:
                each.add_(change)
        for each, seen in zip(self._counts(), changes[len(means) :], strict=True):
            if seen is not None:
                each.add_((seen > 0).reshape(each.shape).to(each.dtype))

    def _means(self) -> list[Tensor]:
        return [getattr(norm, name) for norm in self._norms for name in _STATISTICS]

    def _counts(self) -> list[Tensor]:
        return [getattr(norm, _COUNT) for norm in self._norms]

    def _writes(self) -> list[tuple[int, int]]:
        found = [part.get_buffer(name) for name, part in self._others]
        return [*zip(map(id, found), torch_names.write_counts(found), strict=True)]
