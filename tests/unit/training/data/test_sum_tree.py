"""A sum over a fixed tree is the same whoever has which leaves."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import drawn

from spotelastic.training.data.sum_tree import SumTree, cuts, parts_of, rows, shares, takes


def tree() -> SumTree[str]:
    """Its sums show the order in which they were made."""
    return SumTree[str](lambda left, right: f"({left}+{right})")


def whole(leaves: int) -> str:
    found = tree()
    for leaf in range(leaves):
        found.put(leaf, str(leaf))
    return found.total()


def by_ranks(bounds: tuple[int, ...]) -> str:
    """Each rank adds up its leaves, and another one their parts."""
    total = tree()
    for own in shares(bounds):
        its = tree()
        for leaf in own:
            its.put(leaf, str(leaf))
        for (level, number), value in zip(its.places, its.parts, strict=True):
            total.put(number, value, level)
    return total.total()


@settings(deadline=None, max_examples=drawn(200))
@given(st.data())
def test_any_shares_of_the_leaves_are_added_up_in_one_order(data: st.DataObject) -> None:
    leaves = data.draw(st.integers(1, 70))
    inner = data.draw(st.lists(st.integers(0, leaves), max_size=9))
    assert by_ranks((0, *sorted(inner), leaves)) == whole(leaves)


@settings(deadline=None, max_examples=drawn(100))
@given(st.integers(1, 100), st.integers(1, 40))
def test_cuts_give_each_leaf_to_one_rank_and_no_rank_too_many(leaves: int, ranks: int) -> None:
    bounds = cuts(leaves, ranks)
    sizes = [len(own) for own in shares(bounds)]
    assert (bounds[0], bounds[-1], len(sizes), sum(sizes)) == (0, leaves, ranks, leaves)
    assert max(sizes) <= max(-(-leaves // ranks), 1.1 * leaves / ranks)
    assert min(sizes) >= (1 if leaves >= ranks else 0)


@settings(deadline=None, max_examples=drawn(100))
@given(st.integers(8, 64), st.lists(st.sampled_from([0.5, 1, 1.3, 2, 4]), min_size=1, max_size=8))
def test_shares_of_unlike_ranks_are_as_even_as_leaves_allow(
    leaves: int, times: list[float]
) -> None:
    bounds = cuts(leaves, len(times), tuple(times))
    assert (bounds[0], bounds[-1], len(bounds)) == (0, leaves, len(times) + 1)
    assert all(len(own) for own in shares(bounds))
    ideal = leaves / sum(1 / each for each in times)
    # Where each rank but one has a leaf less than its part, that one ends a leaf later.
    assert takes(bounds, times) <= max(1.1 * ideal, ideal + max(times)) * (1 + 1e-9)


@pytest.mark.parametrize(("leaves", "ranks"), [(7, 3), (8, 3), (9, 2), (11, 4), (12, 5)])
def test_cuts_have_the_fewest_parts(leaves: int, ranks: int) -> None:
    def parts(bounds: tuple[int, ...]) -> int:
        return sum(len(parts_of(own)) for own in shares(bounds))

    most = -(-leaves // ranks)
    every = ((0, *inner, leaves) for inner in itertools.combinations(range(1, leaves), ranks - 1))
    fair = [each for each in every if max(len(own) for own in shares(each)) <= most]
    assert parts(cuts(leaves, ranks)) == min(map(parts, fair))


@given(st.integers(1, 50), st.integers(1, 200))
def test_each_row_is_of_one_leaf(leaves: int, size: int) -> None:
    found = [row for leaf in range(leaves) for row in rows(leaf, leaves, size)]
    assert found == [*range(size)]
