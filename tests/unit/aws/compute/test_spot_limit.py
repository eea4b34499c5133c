"""The price limit of spot nodes, as AWS is told of it: for every type, and for spot alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from moto import mock_aws
from support.aws.worker_group import ITS, two_workers

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.compute import worker_groups


@pytest.fixture
def aws() -> Iterator[Aws]:
    with mock_aws():
        yield Aws("us-east-1")


def limits(aws: Aws) -> tuple[str | None, str | None]:
    """Of the spot and of the on-demand group."""
    found = aws.autoscaling.describe_auto_scaling_groups(
        AutoScalingGroupNames=[ITS.workers, ITS.on_demand]
    )["AutoScalingGroups"]
    policies: dict[str, dict[str, Any]] = {
        group["AutoScalingGroupName"]: group["MixedInstancesPolicy"] for group in found
    }
    spot, on_demand = (
        policies[name]["InstancesDistribution"].get("SpotMaxPrice")
        for name in (ITS.workers, ITS.on_demand)
    )
    return spot, on_demand


def test_no_type_of_the_spot_group_may_cost_more_than_the_limit_which_up_may_change(
    aws: Aws,
) -> None:
    wanted = replace(two_workers(aws), types=("g4dn.xlarge", "g4dn.2xlarge"))
    told = []
    for limit in (0.2, 0.00001, None, 1.5):
        worker_groups.ensure(aws, replace(wanted, max_price=limit))
        told.append(limits(aws))
    assert told == [("0.200000", None), ("0.001000", None), ("", None), ("1.500000", None)]
