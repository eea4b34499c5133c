"""What is read of a worker group."""

from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.aws.compute import autoscaling


@pytest.mark.parametrize(
    ("process", "why", "suspended"),
    [
        ("Launch", "Administratively suspended at 2026-01-01T00:00:00Z", True),
        ("Launch", "User suspended at 2026-01-01T00:00:00Z", False),
        ("AZRebalance", "Administratively suspended at 2026-01-01T00:00:00Z", False),
    ],
)
def test_launches_that_a_person_has_suspended_stay_so(
    process: str, why: str, suspended: bool
) -> None:
    item = {
        "AutoScalingGroupName": "workers",
        "DesiredCapacity": 2,
        "SuspendedProcesses": [{"ProcessName": process, "SuspensionReason": why}],
    }
    client = SimpleNamespace(describe_auto_scaling_groups=lambda **_: {"AutoScalingGroups": [item]})
    aws: Any = SimpleNamespace(autoscaling=client)
    group = autoscaling.group(aws, "workers")
    assert group is not None
    assert group.suspended == suspended
