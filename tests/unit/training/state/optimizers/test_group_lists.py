"""Lists by parameter group move with the groups; those that only look like it do not."""

import pytest

from spotelastic.errors import UsageError
from spotelastic.training.state.optimizers.group_lists import in_order


def test_lists_by_group_move_and_others_stay() -> None:
    saved = {
        "base_lrs": [1, 2, 3],
        "_schedulers": [{"base_momentums": (4, 5, 6)}, {"x": 1}, {"x": 2}],
        "_milestones": [7, 8, 9],
        "alike": [0, 0, 0],
        "two": [1, 2],
    }
    assert in_order("schedule", saved, [2, 0, 1]) == {
        "base_lrs": [2, 3, 1],
        "_schedulers": [{"base_momentums": (5, 6, 4)}, {"x": 1}, {"x": 2}],
        "_milestones": [7, 8, 9],
        "alike": [0, 0, 0],
        "two": [1, 2],
    }


def test_a_list_that_may_go_by_groups_or_not_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"when schedule\.of_mine was saved"):
        in_order("schedule", {"of_mine": [1, 2]}, [1, 0])
