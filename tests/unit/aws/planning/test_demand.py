"""What `up` asks an account for, by the nodes that may be bought."""

import pytest
from support.aws.cluster_requests import job

from spotelastic.aws.planning.survey import demand
from spotelastic.model.job import Capacity, Settings


@pytest.mark.parametrize(
    ("capacity", "spot", "on_demand"),
    [(Capacity(), 8, 0), (Capacity("fallback"), 8, 2), (Capacity(base=3), 5, 3)],
)
def test_how_nodes_may_be_bought_follows_from_the_flag(
    capacity: Capacity, spot: int, on_demand: int
) -> None:
    nodes = demand(job("demo", settings=Settings(2, 8), capacity=capacity))
    assert (nodes.least, nodes.spot, nodes.on_demand) == (2, spot, on_demand)
