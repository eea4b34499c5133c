"""Sums over a fixed binary tree, which are the same bits whoever has which leaves (pure).

A step's global batch is cut into leaves, one for each virtual rank. A rank has neighbouring leaves
and adds up those that belong together. What it is left with are its parts: whole subtrees. Added up
in their order, the parts of all ranks give the sum of the tree, whatever the ranks are.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class SumTree(Generic[T]):
    """The sum of the leaves that have been put in, in their order.

    Of a number of leaves that is no power of two, the subtrees at the right edge are added up last,
    from the right.
    """

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._parts: list[tuple[int, int, T]] = []
        """Level, number within the level, and sum of each subtree."""

    def put(self, number: int, value: T, level: int = 0) -> None:
        """Add a leaf, or the sum of a subtree of some level. Each comes after those to its left."""
        while self._parts:
            before, left, sum_ = self._parts[-1]
            if before != level or left % 2 or number != left + 1:
                break
            self._parts.pop()
            level, number, value = level + 1, left // 2, self._add(sum_, value)
        self._parts.append((level, number, value))

    @property
    def parts(self) -> list[T]:
        """The sums of whole subtrees that are left."""
        return [value for *_, value in self._parts]

    @property
    def places(self) -> list[tuple[int, int]]:
        """Level and number of each part."""
        return [(level, number) for level, number, _ in self._parts]

    def total(self) -> T:
        """Return the sum of all."""
        values = self.parts
        while len(values) > 1:
            right = values.pop()
            values[-1] = self._add(values[-1], right)
        return values[0]


def parts_of(leaves: Iterable[int]) -> list[tuple[int, int]]:
    """Return level and number of the parts of a rank that has these leaves."""
    tree = SumTree[None](lambda _, __: None)
    for leaf in leaves:
        tree.put(leaf, None)
    return tree.places


@functools.lru_cache(maxsize=256)
def cuts(leaves: int, ranks: int, times: tuple[float, ...] = ()) -> tuple[int, ...]:
    """Return the leaf with which each rank begins, and the number of leaves.

    No rank takes longer than the fairest shares need, or a tenth longer than if leaves could be
    divided. Among such shares these have the fewest parts, which is what ranks send each other.
    `times` are what each rank takes for a leaf; without them, all take the same. Where there are
    fewer leaves than ranks, the last ranks have none.
    """
    if leaves < ranks:
        return (*range(leaves), *(leaves,) * (ranks + 1 - leaves))
    most = _most(leaves, times or (1.0,) * ranks)
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for rank in range(ranks):
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        to_come = sum(most[rank + 1 :])
        last = leaves - (ranks - rank - 1)
        for begin, (parts, so_far) in best.items():
            for end in range(max(begin + 1, leaves - to_come), min(begin + most[rank], last) + 1):
                cost = parts + _count(begin, end)
                if end not in found or (cost, so_far) < found[end][:2]:
                    found[end] = cost, (*so_far, end)
        best = found
    return best[leaves][1]


def takes(bounds: Sequence[int], times: Sequence[float]) -> float:
    """Return how long the slowest rank computes with these shares."""
    return max(len(own) * each for own, each in zip(shares(bounds), times, strict=True))


def _most(leaves: int, times: Sequence[float]) -> list[int]:
    """Return how many leaves each rank may have."""
    ideal = leaves / sum(1 / each for each in times)
    # Each rank has at least one. The fairest shares end with one more leaf of some rank.
    ends = sorted({number * each for each in times for number in range(1, leaves + 1)})

    def within(limit: float) -> list[int]:
        return [max(1, math.floor(limit / each * (1 + 1e-9))) for each in times]

    fairest = next(end for end in ends if sum(within(end)) >= leaves)
    return within(max(fairest, 1.1 * ideal))


@functools.lru_cache(maxsize=65536)
def _count(first: int, end: int) -> int:
    return len(parts_of(range(first, end)))


def rows(leaf: int, leaves: int, size: int) -> range:
    """Return which rows of a batch of that size are a leaf's. Sizes differ by one row at most."""
    return range(size * leaf // leaves, size * (leaf + 1) // leaves)


def shares(bounds: Sequence[int]) -> list[range]:
    """Return each rank's leaves."""
    return [range(first, end) for first, end in itertools.pairwise(bounds)]


def turns(leaves: int, ranks: int) -> list[range]:
    """Return each rank's leaves where all ranks compute neighbours at the same time."""
    return [range(rank, leaves, ranks) for rank in range(ranks)]
