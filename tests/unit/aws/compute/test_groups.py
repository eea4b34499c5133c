"""What is read of a worker group."""

import pytest
from support.aws.fake_services import CallLog, FakeAutoScaling, fake_aws

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
    held = process == "Launch" and not suspended
    assert (group.launches_held, len(group.held)) == (held, held), "else it is told"


def test_what_a_person_has_suspended_is_told_with_its_way_out() -> None:
    ours = {"AZRebalance": "User suspended", "Terminate": "User suspended", "Launch": ""}
    workers = FakeAutoScaling(CallLog(), "workers", [], suspended=ours)
    group = autoscaling.group(fake_aws(autoscaling=workers), "workers")
    assert group is not None and group.launches_held and not group.suspended
    assert [line.partition(";")[0] for line in group.held] == [
        "somebody has suspended the ends of instances of the group workers",
        "somebody has suspended the launches of the group workers",
    ]
    assert "resume-processes --auto-scaling-group-name workers" in group.held[0]
