"""Decides which batch a worker computes next, and which gradients make the next update (pure).

Batches are numbered from 0 over the whole run. A worker takes a batch, computes its gradient on the
parameters of one version, and gives that back. Each update makes the next version.

- synchronous: an update is the mean over a fixed number of batches, all computed on the version
  before it, and summed in the order of their numbers. So it is the same bit for bit, whoever
  computes them and however many workers there are.
- bounded: each gradient is an update, and comes at most `staleness` updates after the version that
  it was computed on.
- asynchronous: each gradient is an update, in the order in which they come.

Must never happen:

- a batch is part of two updates, or of none: the standby knows which ones are part of one;
- a gradient is older than the bound: a batch is handed out only if all that are on their way can
  still be applied in time, and one that comes early waits for older ones;
- workers wait for each other for ever: the oldest gradient may always be applied.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["synchronous", "bounded", "asynchronous"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How gradients become updates."""

    mode: Mode = "synchronous"
    batches: int = 1
    """Batches of each update; 1 unless synchronous."""
    staleness: float = math.inf
    """Most updates between the version that a gradient was computed on and its own."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Which batches are part of the parameters."""

    version: int = 0
    """Updates made since the run began."""
    first: int = 0
    """The lowest batch that is part of none of them."""
    beyond: frozenset[int] = frozenset()
    """Batches above it that are part of one."""

    def after(self, batches: Collection[int]) -> "Applied":
        """Return what is done after an update. Raises `ValueError` if one of the batches was."""
        again = [batch for batch in batches if batch < self.first or batch in self.beyond]
        if again or not batches:
            raise ValueError(f"batch {again[0]} twice" if again else "an update of no batch")
        beyond, first = self.beyond.union(batches), self.first
        while first in beyond:
            first += 1
        return Applied(self.version + 1, first, frozenset(each for each in beyond if each > first))


class Order:
    """The order of one window: the updates up to `target`.

    Whoever serves makes a new one in each round. Batches that workers of an earlier round had are
    handed out again, unless they are done.
    """

    def __init__(self, rules: Rules, applied: Applied, target: int) -> None:
        self._rules = rules
        self.applied = applied
        self._target = target
        self._bases: dict[int, int] = {}
        """Versions on which batches are computed that are handed out and not part of an update."""
        self._given: list[int] = []
        """Those of them whose gradients are there, in the order in which they came."""

    @property
    def is_over(self) -> bool:
        """Whether all updates of the window are made."""
        return self.applied.version >= self._target

    def waits(self, batch: int) -> bool:
        """Return whether a batch's gradient is there, and not part of an update yet."""
        return batch in self._given

    def holds(self, batch: int) -> bool:
        """Return whether a worker has to wait for its gradient to be applied before it goes on.

        Synchronous workers may compute more batches of the same update.
        """
        return self.waits(batch) and self._rules.mode != "synchronous"

    def take(self) -> int | None:
        """Hand out a batch, to be computed on the present version; None where none may be now."""
        rules, version, bases = self._rules, self.applied.version, self._bases
        if self.is_over:
            return None
        if rules.mode == "synchronous":
            may = len(bases) < rules.batches
        else:
            in_time = _are_in_time([*bases.values(), version], version, rules.staleness)
            may = in_time and version + len(bases) < self._target
        if not may:
            return None
        numbers = itertools.count(self.applied.first)
        batch = next(n for n in numbers if n not in self.applied.beyond and n not in bases)
        bases[batch] = version
        return batch

    def give(self, batch: int) -> None:
        """Note that a batch's gradient is there. Raises `ValueError` if it was not handed out."""
        if batch not in self._bases or batch in self._given:
            raise ValueError(f"batch {batch} was not handed out")
        self._given.append(batch)

    def due(self) -> tuple[int, ...]:
        """Return the batches of the next update, in the order of summation.

        There are none if it is not due.
        """
        rules = self._rules
        if rules.mode == "synchronous":
            return tuple(sorted(self._given)) if len(self._given) == rules.batches else ()
        for batch in self._given:
            others = [base for each, base in self._bases.items() if each != batch]
            if _are_in_time(others, self.applied.version + 1, rules.staleness):
                return (batch,)
        return ()

    def made(self, batches: Sequence[int]) -> None:
        """Note that the update of these batches is made."""
        self.applied = self.applied.after(batches)
        for batch in batches:
            self._given.remove(batch)
            del self._bases[batch]


def _are_in_time(bases: Collection[int], version: int, staleness: float) -> bool:
    """Return whether gradients computed on these versions can all be applied in time.

    They are applied oldest first, the first of them on `version`.
    """
    return all(version + place - base <= staleness for place, base in enumerate(sorted(bases)))
