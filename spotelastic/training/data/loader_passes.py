"""Checks that a training loop makes one step for each batch that it takes from an `ElasticSampler`.

A loader with workers is ahead of its loop, and only the loader knows by how much. So each pass over
the sampler remembers the loader's iterator that began it, and asks it how many batches it has
handed out. A loop that iterates over the sampler itself takes each batch that it is given.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

from spotelastic.errors import UsageError
from spotelastic.torch_names import LOADER_ITERATOR, batches_handed_out

AHEAD = 2
"""Batches that a loop may take for one step. Lightning and accelerate look one ahead."""
_FRAMES = 8
"""Stack frames in which a loader is looked for; samplers may be wrapped."""
_PASSES = 4
"""Passes that may be under way; an evaluation in the middle of an epoch is one."""


class Pass:
    """One iteration over the sampler."""

    def __init__(self) -> None:
        self.drawn = 0
        """Batches that the sampler has handed out."""
        self.steps = 0
        """Steps that were made since the pass began."""
        self.is_over = False
        """Whether the ranks have changed since it began, so that it deals out others' shares."""
        self.handed_out = 0
        """Batches that its loader had handed out when it ended."""
        loader = _loader_above()
        self.loader = weakref.ref(loader) if loader is not None else None

    @property
    def waiting(self) -> int | None:
        """Batches that the loop has taken and made no step of.

        None where that is no longer known, or where the data come from elsewhere.
        """
        if not self.drawn:
            return None
        if self.loader is None:
            return self.drawn - self.steps
        loader = self.loader()
        return None if loader is None else batches_handed_out(loader) - self.steps

    @property
    def alive(self) -> object | None:
        """The loader's iterator; None where there is none any more."""
        return None if self.loader is None else self.loader()


class Passes:
    """The last few passes over one sampler.

    An evaluation takes batches, too, and makes no steps.
    """

    def __init__(self) -> None:
        self._all: deque[Callable[[], Pass | None]] = deque(maxlen=_PASSES)
        self._ended: list[Pass] = []
        """Passes that ended before their time, of loaders that may have batches ready."""

    def __reduce__(self) -> tuple[type["Passes"], tuple[()]]:
        """Return a fresh object for a copy of the sampler, which no loop has iterated over."""
        return Passes, ()

    def begin(self) -> Pass:
        """Begin a pass. A loader's lasts as long as its loop, another as long as its iterator."""
        begun = Pass()
        if begun.loader is not None:  # a loader whose workers persist begins again with them
            self._ended = [each for each in self._ended if each.loader != begun.loader]
        self._all.append(weakref.ref(begun) if begun.loader is None else lambda: begun)
        return begun

    def end(self) -> None:
        """End all passes before their time."""
        self._ended = [each for each in self._ended if each.alive is not None]
        for each in self._living():
            each.is_over = True
            if (loader := each.alive) is not None:
                each.handed_out = batches_handed_out(loader)
                self._ended.append(each)
        self._all.clear()

    def refuse_ended(self) -> None:
        """Raise `UsageError` where a loader handed out a batch after its pass had ended."""
        for each in self._ended:
            loader = each.alive
            if loader is not None and batches_handed_out(loader) > each.handed_out:
                raise UsageError(
                    "ElasticSampler: a batch was taken that was dealt out before the ranks "
                    "changed: take batches from checkpoint.batches(loader), or call iter(loader) "
                    "again when a step is repeated"
                )

    @property
    def waiting(self) -> list[int]:
        """For each pass, the batches that were taken and no step was made of."""
        found = (each.waiting for each in self._living())
        return [batches for batches in found if batches is not None]

    def _living(self) -> Iterator[Pass]:
        return (found for each in self._all if (found := each()) is not None)

    def check(self) -> None:
        """Raise `UsageError` where a step does not fit the batches of any pass.

        Call it before each step.
        """
        waiting = self.waiting
        if not waiting or any(0 < batches <= AHEAD for batches in waiting):
            return
        batches = max(waiting)
        if batches > AHEAD:
            raise UsageError(
                f"ElasticSampler: {batches} batches were taken for one step, and a step counts as "
                "one. To accumulate gradients, use the whole global_batch and split it with "
                "se.microbatches(), or call sampler.advance() for each batch without a step "
                "(ElasticSampler(..., check=False) turns this check off)"
            )
        raise UsageError(
            "ElasticSampler: a step was made without taking a batch, so samples would be left out: "
            "call checkpoint.step() once for each batch "
            "(ElasticSampler(..., check=False) turns this check off)"
        )

    def stepped(self) -> None:
        """Count a step in all passes."""
        for each in self._living():
            each.steps += 1


def _loader_above() -> object | None:
    """Return the iterator of torch's or torchdata's loader that called, or None.

    Both have a base class of the same name.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        found = frame.f_locals.get("self")
        if any(base.__name__ == LOADER_ITERATOR for base in type(found).__mro__):
            return found
        frame = frame.f_back
    return None
