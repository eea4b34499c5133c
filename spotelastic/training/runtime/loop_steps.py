"""Has progress bars count the steps of a loop as they are, also where it goes on from a save.

`tqdm(checkpoint.steps(total))` asks an iterable for its length, and takes each item for one more
step. But the loop goes on from the step that was restored, and a step that is begun again comes
twice. So a bar over these steps has their numbers.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from spotelastic.training.runtime.patches import put_around

T = TypeVar("T")
_BARS = "tqdm.std"


class LoopSteps(Generic[T]):
    """The steps that are left of a loop, as an iterator that knows where it is."""

    def __init__(self, steps: Iterator[T], total: int, last_step: Callable[[], int]) -> None:
        """Make the iterator.

        `steps` are what it yields; `last_step` returns the last finished one.
        """
        self._steps = steps
        self.total = total
        self.last_step = last_step
        if _BARS in sys.modules:
            _look_at(sys.modules[_BARS].tqdm)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._steps)

    def __len__(self) -> int:
        """Return how many steps are left to be finished."""
        return max(0, self.total - self.last_step())


def _look_at(bar: Any) -> None:
    """Has a bar over `LoopSteps` begin at the last finished step, and follow it."""
    put_around(bar, "__init__", _begin)
    put_around(bar, "__iter__", _count)


def _begin(init: Any, bar: Any, iterable: Any = None, *args: Any, **more: Any) -> None:
    if isinstance(iterable, LoopSteps) and not args:
        more = {"total": iterable.total, "initial": iterable.last_step()} | more
    init(bar, iterable, *args, **more)


def _count(iterate: Any, bar: Any) -> Iterator[Any]:
    steps = bar.iterable
    if not isinstance(steps, LoopSteps) or bar.disable:
        yield from iterate(bar)
        return
    ahead = bar.n - steps.last_step()  # of a bar that was told to begin elsewhere
    try:
        for step in steps:
            bar.update(steps.last_step() + ahead - bar.n)
            yield step
    finally:
        bar.update(steps.last_step() + ahead - bar.n)
        bar.close()
