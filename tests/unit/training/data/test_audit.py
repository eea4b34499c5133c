"""Who computes a virtual rank again, and who is wrong if results differ."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spotelastic.training.data.audit import all_agree, plan, wrong
from spotelastic.training.data.sum_tree import cuts, shares

Seeds = st.integers(0, 1 << 40)


@given(Seeds, st.integers(1, 40), st.integers(1, 40))
def test_others_than_the_owner_compute_it_again_where_there_are_others(
    seed: int, leaves: int, ranks: int
) -> None:
    own = shares(cuts(leaves, ranks))
    found = plan(seed, (1, 24), 1, own)
    assert found is not None
    assert found.leaf in own[found.owner]
    asked = Counter((found.owner, *found.again))
    assert {*asked} <= {*range(ranks)}
    assert len(asked) == min(ranks, 3)
    # Two ranks contradict themselves or each other; one contradicts itself.
    assert [*asked.values()] == ([1, 1, 1] if ranks > 2 else [2] * ranks)


@given(Seeds)
def test_one_place_of_so_many_is_drawn_and_each_rank_comes_to_it(seed: int) -> None:
    own = shares(cuts(16, 4))
    found = [
        plan(seed, (epoch, 64 * batch), 10, own) for epoch in range(20) for batch in range(100)
    ]
    due = [each for each in found if each is not None]
    assert 120 < len(due) < 290
    assert {each.owner for each in due} == {0, 1, 2, 3}
    assert {rank for each in due for rank in each.again} == {0, 1, 2, 3}
    assert {each.leaf for each in due} == {*range(16)}
    assert not any(plan(seed, (0, at), 0, own) for at in range(100))


@given(st.integers(3, 9), st.data())
def test_the_one_that_differs_from_most_is_named(ranks: int, data: st.DataObject) -> None:
    odd = data.draw(st.integers(0, ranks - 1))
    answers = {rank: (b"odd" if rank == odd else b"same",) for rank in range(ranks)}
    assert wrong(answers) == (odd,)
    assert not all_agree(answers)
    assert wrong(dict.fromkeys(range(ranks), (b"same",))) == ()


def test_nobody_is_named_where_it_cannot_be_told() -> None:
    assert wrong({0: (b"a", b"a"), 1: (b"b", b"b")}) == ()
    assert wrong({0: (b"a", b"c"), 1: (b"b", b"d")}) == ()
    assert wrong({0: (b"a",), 1: (b"b",), 2: (b"c",)}) == ()
    assert wrong({0: (b"a",), 1: (b"a",), 2: (b"b",), 3: (b"b",)}) == ()


def test_of_two_ranks_the_one_that_changes_its_answer_is_named() -> None:
    assert wrong({0: (b"a", b"a"), 1: (b"a", b"b")}) == (1,)
    assert wrong({0: (b"b", b"a"), 1: (b"a", b"a")}) == (0,)
    assert wrong({0: (b"a", b"b")}) == (0,)
