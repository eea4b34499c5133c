"""What an Auto Scaling group launches, where, and whom it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.local.autoscaling.planner import (
    GroupInstance,
    GroupRequest,
    LaunchPool,
    Price,
    places,
    purchases,
    surplus,
)

SUBNETS = (("subnet-a", "a"), ("subnet-b", "b"), ("subnet-c", "c"))


def policy(desired: int, **changes: object) -> GroupRequest:
    return GroupRequest(desired, SUBNETS, ("g5.xlarge", "g6.xlarge"), **changes)  # type: ignore[arg-type]


def member(name: str, zone: str = "a", *, spot: bool = True, at: float = 0.0) -> GroupInstance:
    return GroupInstance(name, zone, spot, at)


def prices(**usd: float) -> Price:
    return lambda type, zone: usd[type.partition(".")[0]]


@pytest.mark.parametrize(
    ("base", "percentage", "on_demand"),
    [(0, 0, 0), (0, 100, 4), (1, 0, 1), (1, 50, 3), (0, 50, 2), (0, 10, 1), (9, 0, 4)],
)
def test_the_on_demand_share_is_rounded_up(base: int, percentage: int, on_demand: int) -> None:
    wanted = policy(4, on_demand_base=base, on_demand_percentage=percentage)
    assert wanted.on_demand == on_demand
    assert purchases(wanted, []).count(False) == on_demand


def test_a_lost_on_demand_instance_is_replaced_by_one() -> None:
    wanted = policy(3, on_demand_base=1, on_demand_percentage=0)
    assert purchases(wanted, [member("1"), member("2")]) == [False]
    assert purchases(wanted, [member("1"), member("2", spot=False)]) == [True]


def test_launches_go_to_the_emptiest_zone_first() -> None:
    members = [member("1", "a"), member("2", "a"), member("3", "b")]
    tried = places(policy(4), members, True, prices(g5=1.0, g6=2.0))
    assert [place.zone for place in tried] == ["c", "c", "b", "b", "a", "a"]


def test_spot_takes_the_cheapest_type_and_on_demand_the_order_of_the_overrides() -> None:
    wanted = policy(1, spot_strategy="price-capacity-optimized")
    offer = prices(g5=1.0, g6=0.5)
    assert places(wanted, [], True, offer)[0] == LaunchPool("subnet-a", "a", "g6.xlarge")
    assert places(wanted, [], False, offer)[0] == LaunchPool("subnet-a", "a", "g5.xlarge")
    ranked = policy(1, spot_strategy="capacity-optimized-prioritized")
    assert places(ranked, [], True, offer)[0] == LaunchPool("subnet-a", "a", "g5.xlarge")


def test_scale_in_ends_the_oldest_in_the_fullest_zone() -> None:
    members = [
        member("old", "a", at=1.0),
        member("young", "a", at=2.0),
        member("elsewhere", "b", at=0.5),
    ]
    wanted = policy(2, on_demand_percentage=0)
    assert surplus(wanted, members) == ["old"]


@given(
    desired=st.integers(0, 12),
    base=st.integers(0, 5),
    percentage=st.integers(0, 100),
    members=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12),
)
def test_launches_and_terminations_lead_to_the_desired_size(
    desired: int, base: int, percentage: int, members: list[tuple[str, bool]]
) -> None:
    wanted = policy(desired, on_demand_base=base, on_demand_percentage=percentage)
    seen = [GroupInstance(str(i), zone, spot, float(i)) for i, (zone, spot) in enumerate(members)]
    launched, ended = purchases(wanted, seen), surplus(wanted, seen)
    assert len(seen) + len(launched) - len(ended) == desired
    assert not (launched and ended)
    assert len(set(ended)) == len(ended)
