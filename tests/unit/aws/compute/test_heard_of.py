"""What AWS refuses while not all of it has heard of what was just made, or is changing it: asked
again for a minute. Other refusals are told at once."""

from collections.abc import Iterator

import pytest
from moto import mock_aws
from support.aws.refused_calls import refuse, show_nothing
from support.aws.worker_group import ITS, two_workers

from spotelastic.aws.base import account
from spotelastic.aws.base.clients import KNOWN_WITHIN, Aws, Busy, Rejected, patient
from spotelastic.aws.compute import worker_groups

FULLY_FORMED = "You must use a valid fully-formed launch template. "
UNHEARD_OF = (
    FULLY_FORMED + "Value (worker) for parameter iamInstanceProfile.arn is invalid.",
    FULLY_FORMED + "Could not find the specified version 2.",
    "The specified launch template, with template name spotelastic-demo-workers, does not exist.",
)
PENDING = "You already have a pending update to an Amazon EC2 Auto Scaling resource"


@pytest.fixture
def aws() -> Iterator[Aws]:
    with mock_aws():
        yield Aws("us-east-1")


def groups(aws: Aws) -> list[str]:
    found = aws.autoscaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    return sorted(each["AutoScalingGroupName"] for each in found)


@pytest.mark.parametrize("operation", ["CreateAutoScalingGroup", "UpdateAutoScalingGroup"])
@pytest.mark.parametrize("message", UNHEARD_OF)
def test_groups_are_made_once_their_launch_template_is_known(
    aws: Aws, operation: str, message: str
) -> None:
    asked = refuse(aws.autoscaling, operation, "ValidationError", message, times=2)
    worker_groups.ensure(aws, two_workers(aws))
    assert len(asked) == 2 + 2, "once for each group"
    assert groups(aws) == [ITS.workers, ITS.on_demand]


@pytest.mark.parametrize(
    "operation", ["SuspendProcesses", "PutScheduledUpdateGroupAction", "UpdateAutoScalingGroup"]
)
def test_a_group_is_set_up_once_nothing_else_changes_it(aws: Aws, operation: str) -> None:
    asked = refuse(aws.autoscaling, operation, "ResourceContention", PENDING, times=2, status=500)
    worker_groups.ensure(aws, two_workers(aws))
    assert len(asked) == 2 + 2


def test_a_group_that_cannot_be_is_told_at_once(aws: Aws) -> None:
    asked = refuse(aws.autoscaling, "CreateAutoScalingGroup", "ValidationError", "Max bound")
    with pytest.raises(Rejected, match="Max bound"):
        worker_groups.ensure(aws, two_workers(aws))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [("ScalingActivityInProgress", 400), ("ResourceInUse", 400), ("ResourceContention", 500)],
)
def test_a_group_goes_once_nothing_else_changes_it(aws: Aws, code: str, status: int) -> None:
    worker_groups.ensure(aws, two_workers(aws))
    asked = refuse(aws.autoscaling, "DeleteAutoScalingGroup", code, times=2, status=status)
    worker_groups.delete(aws, ITS)
    assert len(asked) == 2 + 2
    assert groups(aws) == []


def test_what_an_up_before_has_just_made_is_taken_though_aws_does_not_show_it(aws: Aws) -> None:
    """An `up` that was killed, and one that follows within the second."""
    worker_groups.ensure(aws, two_workers(aws))
    none: dict[str, list[object]] = {"LaunchTemplates": [], "AutoScalingGroups": []}
    templates = show_nothing(aws.ec2, "DescribeLaunchTemplates", none, times=2)
    looks = show_nothing(aws.autoscaling, "DescribeAutoScalingGroups", none, times=2)
    made = refuse(aws.autoscaling, "CreateAutoScalingGroup", "AlreadyExists")
    worker_groups.ensure(aws, two_workers(aws))
    assert (len(templates), len(looks), len(made)) == (3, 3 + 1, 2)
    assert groups(aws) == [ITS.workers, ITS.on_demand]


def test_a_launch_template_that_aws_lists_though_it_is_gone_is_made_anew(aws: Aws) -> None:
    """An `up` within the second after a `down`."""
    worker_groups.ensure(aws, two_workers(aws))
    listed = aws.ec2.describe_launch_templates()
    worker_groups.delete(aws, ITS)
    worker_groups.delete_template(aws, ITS)
    before = {"LaunchTemplates": listed["LaunchTemplates"]}
    looks = show_nothing(aws.ec2, "DescribeLaunchTemplates", before, times=2)
    assert worker_groups.root_disk(aws, ITS) is None
    worker_groups.ensure(aws, two_workers(aws))
    assert len(looks) == 1
    assert worker_groups.root_disk(aws, ITS) is not None


def test_a_new_bucket_is_protected_though_its_changes_conflict(aws: Aws) -> None:
    asked = refuse(aws.s3, "PutBucketPolicy", "OperationAborted", times=2, status=409)
    bucket = account.default_bucket(aws)
    account.ensure_bucket(aws, bucket)
    assert len(asked) == 3
    assert aws.s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == [account.PROTECTED]


@pytest.mark.parametrize("kind", [Rejected, Busy])
def test_it_is_told_after_a_minute(kind: type[Rejected] | type[Busy]) -> None:
    now, asked = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    @patient(lambda error: error.code == "soon", clock=lambda: now, sleep=sleep)
    def call() -> None:
        nonlocal asked
        asked += 1
        raise kind("cannot do it", "soon" if now < 2 * KNOWN_WITHIN else "never")

    with pytest.raises(kind, match="cannot do it"):
        call()
    assert KNOWN_WITHIN - 2.0 < now <= KNOWN_WITHIN
    assert asked < 50, "ever more rarely"
    now, asked = 2 * KNOWN_WITHIN, 0
    with pytest.raises(kind):
        call()
    assert (now, asked) == (2 * KNOWN_WITHIN, 1)
