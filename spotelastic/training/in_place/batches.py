"""Takes batches of a loader for ever, and the right ones again when a step is begun again."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

import torch
from torch.utils.data import IterableDataset

from spotelastic import torch_names
from spotelastic.errors import UsageError
from spotelastic.training.data import randomness
from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.in_place import loaders
from spotelastic.training.in_place.steps import Steps

T = TypeVar("T")

SMALL = 1 << 20
"""Bytes up to which a batch is copied in any case, in case its step changes it."""
TRIED = 3
"""Steps after which a batch that is larger is copied no more, if none of them has changed one."""


class Batches(Generic[T]):
    """An iterator over a loader's batches that begins the loader again where it ends.

    If a step is begun again, the batches that were taken in it come again, as they were. With an
    `ElasticSampler`, they are this rank's new share of them: the loader begins again at the cursor.
    """

    def __init__(self, loader: Iterable[T], steps: Steps) -> None:
        self._loader = loader
        self._iterator: Iterator[T] | None = None
        self._is_elastic = _sampler_of(loader) is not None
        self._taken: list[_Taken[T]] = []
        """Batches of the step that is being made, where these come again."""
        self._again: list[_Taken[T]] = []
        self._unchanged = 0
        """Steps in a row that have not changed their batches."""
        self._steps = steps
        steps.undone.append(self._undone)
        steps.counted.append(self._counted)
        steps.ask(self._problem)
        if isinstance(getattr(loader, "dataset", None), IterableDataset):
            steps.complain(
                "checkpoint.batches(loader): the data set is an IterableDataset. What a lost rank "
                "would have read of it, nobody reads: use an indexed data set with an "
                "se.ElasticSampler"
            )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not (self._steps.is_within and self._come_again):
            return self._again.pop(0).come() if self._again else self._next()
        before = randomness.capture()
        batch = self._again.pop(0).come() if self._again else self._next()
        copies = self._unchanged < TRIED or self._is_elastic
        self._taken.append(_Taken(batch, before, copies=copies))
        return batch

    @property
    def _come_again(self) -> bool:
        """Whether a step that is begun again gets the same batches.

        Those of a rehearsal are not made anew either: a loader's workers would draw other random
        numbers.
        """
        return not self._is_elastic or self._steps.is_rehearsed

    def _next(self) -> T:
        if self._iterator is not None:
            for batch in self._iterator:
                return batch
        self._iterator = iter(self._loader)
        for batch in self._iterator:
            return batch
        raise UsageError("checkpoint.batches(loader): the loader has no batches")

    def _problem(self) -> str:
        if all(taken.can_come_again for taken in self._taken):
            return ""
        self._unchanged = 0
        return "a batch above 1 MiB is changed by the step that has taken it"

    def _undone(self) -> None:
        if self._is_elastic:
            self._iterator = None
        again = [*self._taken, *self._again]
        self._again, self._taken = again if self._come_again else [], []

    def _counted(self) -> None:
        if self._taken and self._unchanged < TRIED:
            same = all(each.is_unchanged for each in self._taken)
            self._unchanged = self._unchanged + 1 if same else 0
        self._taken = []


class _Taken(Generic[T]):
    """A batch that a step has taken, and the random numbers that were drawn for it."""

    def __init__(self, batch: T, before: dict[str, Any], *, copies: bool) -> None:
        self._batch = batch
        after = randomness.capture()
        self._drawn = None if after == before else (before, after)
        self._tensors = [*_tensors(batch)]
        self._versions = torch_names.write_counts(self._tensors)
        self._copy: T | None = None
        if copies or sum(each.nbytes for each in self._tensors) <= SMALL:
            try:
                self._copy = copy.deepcopy(batch)
            except Exception:  # some object cannot be copied: it comes again as it is
                self._copy = None

    @property
    def is_unchanged(self) -> bool:
        return self._versions == torch_names.write_counts(self._tensors)

    @property
    def can_come_again(self) -> bool:
        return self._copy is not None or self.is_unchanged

    def come(self) -> T:
        """Return it as it was. Generators are where they were when it had been loaded."""
        if self._drawn is not None and randomness.capture() == self._drawn[0]:
            randomness.apply(self._drawn[1])
        return self._batch if self._copy is None else self._copy


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for each in batch.values():
            yield from _tensors(each)
    elif isinstance(batch, list | tuple):
        for each in batch:
            yield from _tensors(each)
    elif hasattr(batch, "__dict__"):
        for each in vars(batch).values():
            if isinstance(each, torch.Tensor):
                yield each


def _sampler_of(loader: Any) -> ElasticSampler | None:
    """Return the loader's elastic sampler. Raises `UsageError` for one bound to its ranks."""
    if found := loaders.bound(loader):
        raise UsageError(f"checkpoint.batches(loader): {found}")
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(loader, name, None)
        for each in (sampler, getattr(sampler, "sampler", None)):
            if isinstance(each, ElasticSampler):
                return each
    return None
