"""Which saved parameter group is which."""

import pytest

from spotelastic.errors import UsageError
from spotelastic.training.state.optimizers.parameter_groups import matched


def test_groups_are_known_by_their_parameters_in_any_order() -> None:
    assert matched("o", [["a", "b"], ["c"]], [["c"], ["b", "a"]]) == [1, 0]
    assert matched("o", [["a"]], [["a"]]) == [0]
    assert matched("o", [], []) == []


def test_groups_without_parameters_keep_their_order() -> None:
    assert matched("o", [[], ["a"], []], [["a"], [], []]) == [1, 0, 2]


@pytest.mark.parametrize(
    ("here", "saved", "told"),
    [
        ([["a"], ["b", "c"]], [["a", "b"], ["c"]], "group 0 was saved with the parameters a, b,"),
        ([["a"], ["b"]], [["a"], []], r"group 1 was saved with the parameters \(none\)"),
        ([["a"]], [[*"bcdefg"]], "b, c, d and 3 more"),
    ],
)
def test_a_group_that_is_none_of_these_is_told(
    here: list[list[str]], saved: list[list[str]], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        matched("optimizer", here, saved)
