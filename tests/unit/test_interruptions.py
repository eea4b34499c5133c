"""Interruptions on AWS: what its Fault Injection Service is asked for, and what is left of it."""

import json
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from spotelastic.aws import interruptions
from spotelastic.aws.clients import Aws

REGION = "us-east-1"


@pytest.fixture
def aws() -> Iterator[Aws]:
    with mock_aws():
        yield Aws(REGION)


def test_a_notice_is_an_experiment_on_that_instance_and_leaves_no_template(aws: Aws) -> None:
    interruptions.interrupt(aws, "i-0a1b2c3d4e5f60718", 120.0)
    interruptions.interrupt(aws, "i-0a1b2c3d4e5f60718", 900.0)
    fis = boto3.client("fis", region_name=REGION)
    assert fis.list_experiment_templates()["experimentTemplates"] == []
    found = [
        fis.get_experiment(id=each["id"])["experiment"]
        for each in fis.list_experiments()["experiments"]
    ]
    durations = [
        each["actions"]["interrupt"]["parameters"]["durationBeforeInterruption"] for each in found
    ]
    assert sorted(durations) == ["PT15M", "PT2M"]
    assert all(
        each["targets"]["node"]["resourceArns"]
        == ["arn:aws:ec2:us-east-1:123456789012:instance/i-0a1b2c3d4e5f60718"]
        for each in found
    )


def test_the_role_may_interrupt_nodes_of_clusters_and_do_nothing_else(aws: Aws) -> None:
    interruptions.interrupt(aws, "i-0a1b2c3d4e5f60718", 120.0)
    iam = boto3.client("iam", region_name=REGION)
    name = f"spotelastic-fis-{REGION}"
    trust = iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
    assert trust["Statement"][0]["Principal"] == {"Service": "fis.amazonaws.com"}
    policy = iam.get_role_policy(RoleName=name, PolicyName="spotelastic")["PolicyDocument"]
    actions = {statement["Action"] for statement in policy["Statement"]}
    assert actions == {"ec2:DescribeInstances", "ec2:SendSpotInstanceInterruptions"}
    (statement,) = [s for s in policy["Statement"] if s["Action"] != "ec2:DescribeInstances"]
    assert "spotelastic:cluster" in json.dumps(statement["Condition"])
