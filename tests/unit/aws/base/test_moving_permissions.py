"""What a control node may do in the other regions of a job that moves by itself, and what not."""

from collections.abc import Iterator

import pytest
from support.aws.account import account
from support.aws.cluster_requests import request
from support.aws.policies import of_another
from support.aws.template import ACCOUNT, CLUSTER, REGION, RUN, arn, resources
from support.strict.evaluation import AccessRequest, Policy, Resource, permits

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names, bucket
from spotelastic.aws.planning.plan import plan_of
from spotelastic.model.job import Regions

WEST, ELSEWHERE = "us-west-2", "eu-west-1"
ITS = Names(CLUSTER)
OWN = {"s3:ResourceAccount": ACCOUNT}
CHECKPOINT = f"{RUN}/checkpoints/1/step-1/0.distcp"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:
    """As the stack of such a job has it."""
    with account(tmp_path_factory.mktemp("account")):
        wanted = request(CLUSTER, run=RUN, regions=Regions((REGION, WEST)))
        given = plan_of(wanted, Aws(REGION), None).parameters
    assert plan_is_condition(given)
    document = resources()["MovingPolicy"]["Properties"]["PolicyDocument"]
    yield {
        **document,
        "Statement": [
            {**each, "Resource": given.get(str(each["Resource"]), str(each["Resource"])).split(",")}
            for each in document["Statement"]
        ],
    }


def plan_is_condition(given: dict[str, str]) -> bool:
    return given["MovingBuckets"].split(",")[0] != "-"


def calls(region: str) -> Iterator[AccessRequest]:
    commands = (Resource(arn("sqs", ITS.commands, region)),)
    stack = (Resource(arn("cloudformation", f"stack/{ITS.stack}/0", region)),)
    secret = (Resource(arn("ssm", f"parameter{ITS.token}", region)),)
    for action, things in (
        ("sqs:GetQueueUrl", commands),
        ("sqs:SendMessage", commands),
        ("cloudformation:DescribeStacks", stack),
        ("cloudformation:DeleteStack", stack),
        ("ssm:DeleteParameters", secret),
    ):
        yield AccessRequest(action, things)
    of_region = f"arn:aws:s3:::{bucket(ACCOUNT, region)}"
    for name in (f"{CLUSTER}/status.json", CHECKPOINT):
        for action in (
            "s3:AbortMultipartUpload",
            "s3:DeleteObject",
            "s3:GetObject",
            "s3:ListMultipartUploadParts",
            "s3:PutObject",
        ):
            yield AccessRequest(action, (Resource(f"{of_region}/{name}"),), OWN)
    whole = (Resource(of_region),)
    yield AccessRequest("s3:ListBucket", whole, OWN | {"s3:prefix": f"{RUN}/checkpoints/"})
    yield AccessRequest("s3:ListBucketMultipartUploads", whole, OWN)


@pytest.mark.parametrize("region", [REGION, WEST])
def test_it_may_do_what_a_move_does_with_its_own_cluster_and_run(
    policy: Policy, region: str
) -> None:
    named = {action for each in policy["Statement"] for action in actions(each)}
    assert named == {access.action for access in calls(region)}
    for access in calls(region):
        assert permits([policy], access), access
        for name in (CLUSTER, RUN):
            elsewhere = of_another(access, name)
            assert elsewhere == access or not permits([policy], elsewhere), elsewhere
        if access.action.startswith("s3:"):
            theirs = AccessRequest(
                access.action, access.resources, {**access.context, "s3:ResourceAccount": "1"}
            )
            assert not permits([policy], theirs), theirs


def test_it_reaches_no_object_in_a_region_that_the_job_does_not_have(policy: Policy) -> None:
    for access in calls(ELSEWHERE):
        assert permits([policy], access) is not access.action.startswith("s3:"), access


def actions(statement: Policy) -> list[str]:
    given = statement["Action"]
    return [given] if isinstance(given, str) else given


def test_a_job_that_stays_gives_its_control_nodes_nothing_of_that(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with account(tmp_path_factory.mktemp("account")):
        given = plan_of(request(CLUSTER), Aws(REGION), None).parameters
    assert not plan_is_condition(given)
    assert resources()["MovingPolicy"]["Condition"] == "Moving"
