"""Takes batches of a loader for ever, and the right ones again when a step is begun again."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from spotelastic.errors import UsageError
from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.in_place import loaders
from spotelastic.training.in_place.steps import Steps

T = TypeVar("T")


class Batches(Generic[T]):
    """An iterator over a loader's batches that begins the loader again where it ends.

    If a step is begun again, the batches that were taken in it come again. With an
    `ElasticSampler`, they are this rank's new share of them: the loader begins again at the cursor.
    """

    def __init__(self, loader: Iterable[T], steps: Steps) -> None:
        self._loader = loader
        self._iterator: Iterator[T] | None = None
        self._is_elastic = _sampler_of(loader) is not None
        self._taken: list[T] = []
        """Batches of the step that is being made, where the loader cannot be begun again."""
        self._again: list[T] = []
        self._steps = steps
        steps.undone.append(self._undone)
        steps.counted.append(self._counted)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        batch = self._again.pop(0) if self._again else self._next()
        if self._steps.is_within and not self._is_elastic:
            self._taken.append(batch)
        return batch

    def _next(self) -> T:
        if self._iterator is not None:
            for batch in self._iterator:
                return batch
        self._iterator = iter(self._loader)
        for batch in self._iterator:
            return batch
        raise UsageError("checkpoint.batches(loader): the loader has no batches")

    def _undone(self) -> None:
        if self._is_elastic:
            self._iterator = None
        self._again, self._taken = [*self._taken, *self._again], []

    def _counted(self) -> None:
        self._taken = []


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
