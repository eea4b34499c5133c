"""What `up` looks for in an account, by the nodes that are asked for."""

from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.cli.commands.bring_up import _wish
from spotelastic.model.job import Capacity

REQUEST: Any = SimpleNamespace(
    types=("g5.xlarge",), minimum=2, maximum=8, placement="", image="", vpc="", subnets=()
)


@pytest.mark.parametrize(
    ("capacity", "spot", "on_demand"),
    [(Capacity(), 8, 0), (Capacity("fallback"), 8, 2), (Capacity(base=3), 5, 3)],
)
def test_how_nodes_may_be_bought_follows_from_the_flag(
    capacity: Capacity, spot: int, on_demand: int
) -> None:
    checked: Any = SimpleNamespace(name="demo", capacity=capacity, requirement=Requirement())
    wish = _wish(REQUEST, checked, None)
    assert (wish.minimum, wish.spot, wish.on_demand) == (2, spot, on_demand)
