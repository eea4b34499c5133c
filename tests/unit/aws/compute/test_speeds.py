"""Unlike types of nodes are compared by what they compute for their price."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from moto import mock_aws
from support.aws.worker_group import ITS, two_workers

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.compute import offers, speeds, worker_groups
from spotelastic.aws.compute.instance_types import shipped
from spotelastic.aws.compute.zone_ranking import Zones
from spotelastic.cloud.model import ZoneOffer, ranked

UNLIKE = ("g5.xlarge", "g6e.xlarge")


def test_a_rate_is_known_of_every_gpu_that_has_a_shipped_price() -> None:
    assert {kind.gpu for kind in shipped()} <= speeds.PEAK.keys()


def test_nodes_are_as_fast_as_all_of_their_gpus() -> None:
    assert speeds.relative(("g6.xlarge", "g6.12xlarge")) == {"g6.xlarge": 1.0, "g6.12xlarge": 4.0}
    found = speeds.relative(UNLIKE)
    assert found["g6e.xlarge"] == pytest.approx(speeds.PEAK["L40S"] / speeds.PEAK["A10G"])


@pytest.mark.parametrize("types", [("g5.xlarge",), ("g5.xlarge", "g5.2xlarge"), ("m5.large", "x")])
def test_of_alike_types_and_of_those_that_are_not_known_nothing_is_said(
    types: tuple[str, ...],
) -> None:
    assert speeds.relative(types) == {}


PRICES: Mapping[str, Mapping[str, float]] = {
    "g5.xlarge": {"a": 0.4, "b": 0.3},
    "g6e.xlarge": {"a": 0.8, "b": 2.4},
}
"""The cheapest node is in b; the cheapest step in a."""


@pytest.mark.parametrize(
    ("types", "best", "usd"), [(UNLIKE, "a", [0.4, 0.3]), (UNLIKE[:1], "b", [0.3, 0.4])]
)
def test_the_zone_with_the_cheapest_step_comes_first(
    monkeypatch: pytest.MonkeyPatch, types: tuple[str, ...], best: str, usd: list[float]
) -> None:
    monkeypatch.setattr(offers, "spot_prices", lambda _, asked: {t: PRICES[t] for t in asked})
    aws: Any = cast(Any, NoScores())
    found = ranked(Zones(aws).offers([ZoneOffer("a"), ZoneOffer("b")], types, 4))
    assert found[0].name == best
    assert [zone.usd for zone in found] == usd, "limits of a price are of nodes"


class NoScores:
    """EC2, which tells no placement scores."""

    region = "us-east-1"

    @property
    def ec2(self) -> "NoScores":
        return self

    def get_paginator(self, _: str) -> "NoScores":
        return self

    def paginate(self, **_: Any) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("in_order", "strategy"),
    [(False, "price-capacity-optimized"), (True, "capacity-optimized-prioritized")],
)
def test_of_unlike_types_auto_scaling_prefers_the_first(in_order: bool, strategy: str) -> None:
    with mock_aws():
        aws = Aws("us-east-1")
        worker_groups.ensure(aws, replace(two_workers(aws), types=UNLIKE, in_order=in_order))
        (group,) = aws.autoscaling.describe_auto_scaling_groups(
            AutoScalingGroupNames=[ITS.workers]
        )["AutoScalingGroups"]
    policy: Any = group["MixedInstancesPolicy"]
    assert policy["InstancesDistribution"]["SpotAllocationStrategy"] == strategy
    assert [each["InstanceType"] for each in policy["LaunchTemplate"]["Overrides"]] == [*UNLIKE]
