"""What gradients cost that go from zone to zone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.aws.planning.zone_traffic import HOUR, usd_per_step, warnings


@pytest.mark.parametrize(
    ("billions", "width", "nodes", "steps_per_second", "an_hour"),
    [(1.5, 2, 8, 1.0, 756.0), (7.0, 2, 8, 0.25, 882.0), (0.124, 2, 8, 4.0, 250.0)],
)
def test_a_ring_over_two_zones_costs_what_its_bytes_do(
    billions: float, width: int, nodes: int, steps_per_second: float, an_hour: float
) -> None:
    a_step = usd_per_step(billions * width, nodes, 2)
    assert a_step * steps_per_second * HOUR == pytest.approx(an_hour, rel=0.005)


@given(st.floats(0.001, 1e3), st.integers(1, 64), st.integers(1, 6))
def test_one_zone_and_one_node_cost_nothing_and_more_never_less(
    gradients: float, nodes: int, zones: int
) -> None:
    cost = usd_per_step(gradients, nodes, zones)
    assert (cost > 0) == (min(nodes, zones) > 1)
    assert usd_per_step(gradients, nodes + 1, zones) >= cost
    assert usd_per_step(gradients, nodes, zones + 1) >= cost


def test_a_plan_says_what_a_step_costs_and_that_efa_is_off() -> None:
    (line,) = warnings(8, 2, efa=False)
    assert "0.070 USD a step for each GB" in line and "252.00 USD an hour" in line
    _, of_efa = warnings(8, 2, efa=True)
    assert "EFA does not reach other zones" in of_efa
    assert not [*warnings(1, 3, efa=True), *warnings(8, 1, efa=True)]
