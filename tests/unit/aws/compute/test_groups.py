"""What is read of a worker group."""

import pytest
from support.fake_aws import CallLog, FakeAutoScaling, fake_aws

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
    workers = FakeAutoScaling(CallLog(), "workers", [], suspended={process: why})
    group = autoscaling.group(fake_aws(autoscaling=workers), "workers")
    assert group is not None
    assert group.suspended == suspended
