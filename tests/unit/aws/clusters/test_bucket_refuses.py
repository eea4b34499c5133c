"""A cluster whose bucket refuses everything costs as much as any other: it ends all the same.

The key of the bucket is disabled or about to be deleted, or a policy has come to deny it.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.aws.account import KILLED, KILLED_AFTER, REGION, Killed, Laptop, account, forget
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request
from support.aws.fake_services import refusal
from support.aws.refused_calls import refuse

from spotelastic.aws.base.clients import Aws, Rejected, SignedOut
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle, teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.client.targets.find import holding
from spotelastic.cloud.model import ALIVE

NAME = "quokka"
CALLS = ("GetObject", "HeadObject", "ListObjectsV2", "PutObject")


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    with account(tmp_path / "account"):
        lifecycle.create(request(NAME, 2), lambda _: None, Aws(REGION))
        yield Aws(REGION)


@pytest.mark.parametrize("code", ["AccessDenied", "KMS.DisabledException"])
def test_down_ends_it_and_says_what_it_could_not_do(aws: Aws, code: str) -> None:
    for call in CALLS:
        refuse(aws.s3, call, code, "the bucket refuses")
    said: list[str] = []
    target = holding(AwsTarget(aws), NAME, said.append)
    target.down(NAME, said.append)
    told = "\n".join(said)
    assert "if the job moves between regions, take it down in the others with --region" in told
    assert f"{NAME}/stopping: " in told and "the cluster ends all the same" in told
    assert f"{NAME} is gone" in said and "what it has stored is not known" in told
    assert remains(NAME) == []


def test_down_ends_a_cluster_by_its_name_where_the_disks_of_all_may_not_be_listed(aws: Aws) -> None:
    refuse(aws.ec2, "DescribeVolumes", "UnauthorizedOperation", "the bill is not yours")
    with pytest.raises(Rejected, match=r"the disks of quokka: .*the bill is not yours"):
        AwsTarget(aws).down(NAME, lambda _: None)
    assert not any(each.state in ALIVE for each in autoscaling.instances(aws, NAME))


def test_a_down_that_is_killed_there_is_ended_by_the_next_one(tmp_path: Path) -> None:
    with account(tmp_path / "account"):
        laptop = Laptop()
        for call in CALLS:
            refuse(laptop.aws.s3, call, "AccessDenied", "the bucket refuses")

        def down() -> None:
            AwsTarget(laptop.aws).down(NAME, lambda _: None)

        lifecycle.create(request(NAME, 2), lambda _: None, Aws(REGION))
        with laptop.trial():
            down()
            calls = list(laptop.calls)
        assert remains(NAME) == [] and "cloudformation.DeleteStack" in calls
        for at in range(3, len(calls), 11):
            lifecycle.create(request(NAME, 2), lambda _: None, Aws(REGION))
            fault = (KILLED, KILLED_AFTER)[at % 2]
            with suppress(Killed), laptop.trial(fault, at):
                down()
            if remains(NAME):
                down()
            assert remains(NAME) == [], f"{fault.name} at call {at}, {calls[at - 1]}"
            forget()


def test_the_list_shows_it_beside_the_others(aws: Aws) -> None:
    lifecycle.create(request("numbat", asleep=True), lambda _: None, Aws(REGION))

    def denied(params: dict[str, str], **_: object) -> None:
        if params["Key"].startswith(f"{NAME}/"):
            raise refusal("AccessDenied", "GetObject", "a policy denies it")

    aws.s3.meta.events.register("provide-client-params.s3.GetObject", denied)
    states = {each.name: each.state for each in AwsTarget(aws).listing()}
    assert states.keys() == {NAME, "numbat"}
    assert states[NAME] == "not readable" != states["numbat"]


def test_an_up_that_fails_for_that_leaves_nothing(tmp_path: Path) -> None:
    with account(tmp_path / "account"):
        aws = Aws(REGION)
        refuse(aws.s3, "PutObject", "KMS.KMSInvalidStateException", "its key is pending deletion")
        said: list[str] = []
        with pytest.raises(Rejected, match="its key is pending deletion"):
            lifecycle.create(request(NAME), said.append, aws)
        assert remains(NAME) == []
        assert not [line for line in said if "could be deleted" in line]


def test_a_controller_that_ends_it_ends_at_least_the_workers(aws: Aws) -> None:
    bucket = teardown.bucket_of(aws, Names(NAME))
    for call in CALLS:
        refuse(aws.s3, call, "KMS.DisabledException", "the bucket refuses")
    with pytest.raises(Rejected, match="the bucket refuses"):
        teardown.delete_from_within(aws, NAME, bucket, "")
    alive = [each for each in autoscaling.instances(aws, NAME, "worker") if each.state in ALIVE]
    assert not alive


def test_credentials_that_have_ended_end_nothing(aws: Aws) -> None:
    refuse(aws.s3, "PutObject", "ExpiredToken", "it has expired")
    with pytest.raises(SignedOut, match="log in again"):
        AwsTarget(aws).down(NAME, lambda _: None)
    assert any(each.state in ALIVE for each in autoscaling.instances(aws, NAME))
