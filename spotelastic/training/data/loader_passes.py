"""Whether steps are as many as the batches that a loop has taken from a sampler.

A loader with workers is ahead of its loop, and only the loader knows by how much. So each pass over
the sampler remembers the loader's iterator that it was begun by, and asks it how many batches it
has handed out. What iterates the sampler itself takes what it is given.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

from spotelastic.errors import UsageError

AHEAD = 2
"""Batches that a loop may have for one step: Lightning and accelerate look one batch ahead."""
_FRAMES = 8
"""How far up the stack a loader is looked for: samplers may be wrapped."""
_PASSES = 4
"""Passes that may be under way: an evaluation in the middle of an epoch is one."""


class Pass:
    """One iteration over the sampler."""

    def __init__(self) -> None:
        self.drawn = 0
        """Batches that the sampler has given away,"""
        self.steps = 0
        """and steps that were made since the pass began."""
        loader = _loader_above()
        self.loader = weakref.ref(loader) if loader is not None else None

    @property
    def waiting(self) -> int | None:
        """Batches that the loop has taken and made no step of; None where nobody knows any more, or
        where data come from elsewhere."""
        if not self.drawn:
            return None
        if self.loader is None:
            return self.drawn - self.steps
        loader = self.loader()
        return None if loader is None else getattr(loader, "_num_yielded", 0) - self.steps


class Passes:
    """The last few of one sampler. An evaluation takes batches, too, and makes no steps."""

    def __init__(self) -> None:
        self._all: deque[Callable[[], Pass | None]] = deque(maxlen=_PASSES)

    def __reduce__(self) -> tuple[type["Passes"], tuple[()]]:
        """A copy of the sampler has been iterated over by nobody."""
        return Passes, ()

    def begin(self) -> Pass:
        """A loader's lasts as long as its loop, any other as long as who iterates."""
        begun = Pass()
        self._all.append(weakref.ref(begun) if begun.loader is None else lambda: begun)
        return begun

    @property
    def waiting(self) -> list[int]:
        found = (each.waiting for each in self._living())
        return [batches for batches in found if batches is not None]

    def _living(self) -> Iterator[Pass]:
        return (found for each in self._all if (found := each()) is not None)

    def check(self) -> None:
        """Before a step is counted: raises `UsageError` where no pass fits to that."""
        waiting = self.waiting
        if not waiting or any(0 < batches <= AHEAD for batches in waiting):
            return
        batches = max(waiting)
        if batches > AHEAD:
            raise UsageError(
                f"ElasticSampler: {batches} batches were taken for one step, and a step counts as "
                "one. To accumulate gradients, give the whole global_batch and cut it up by "
                "se.microbatches(); or call sampler.advance() for each batch without a step "
                "(ElasticSampler(..., check=False) leaves the counting to you)"
            )
        raise UsageError(
            "ElasticSampler: a step was made and no batch was taken for it, so that samples would "
            "be left out: call checkpoint.step() once for each batch "
            "(ElasticSampler(..., check=False) leaves the counting to you)"
        )

    def stepped(self) -> None:
        for each in self._living():
            each.steps += 1


def _loader_above() -> object | None:
    """torch's or torchdata's iterator, which have the base class by name in common."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        found = frame.f_locals.get("self")
        if any(base.__name__ == "_BaseDataLoaderIter" for base in type(found).__mro__):
            return found
        frame = frame.f_back
    return None
