"""Whom a rank tells of a vote, and whom it hears."""

from hypothesis import given
from hypothesis import strategies as st

from spotelastic.training.in_place.voting import TOLD, stages_of


@given(st.integers(1, 2000))
def test_after_its_stages_a_rank_has_heard_of_all_and_of_nobody_twice(size: int) -> None:
    known = {0}
    """How far before a rank those are of which it has heard. It is the same for all."""
    for stage in stages_of(size):
        heard = [{(apart + each) % size for each in known} for apart in stage]
        assert len(stage) <= TOLD
        assert len({apart % size for apart in stage} - known) == len(stage)
        known.update(*heard)
    assert known == {*range(size)}


def test_stages_are_few() -> None:
    assert [len([*stages_of(size)]) for size in (1, 2, 4, 5, 16, 17, 1024)] == [0, 1, 1, 2, 2, 3, 5]
