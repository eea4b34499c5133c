"""Interruptions on AWS: what its Fault Injection Service is asked for, and what is left of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from support.aws.policies import additions, shipped
from support.strict.evaluation import AccessRequest, Resource, permits

from spotelastic.aws.base.clients import KNOWN_WITHIN, Aws, Rejected
from spotelastic.aws.clusters import fault_injection
from spotelastic.errors import Unavailable

REGION = "us-east-1"
NODE = "i-0a1b2c3d4e5f60718"
INITIATING = {"status": "initiating", "reason": "Experiment is initiating."}
RUNNING = {"status": "running", "reason": "Experiment is running."}


def failed(reason: str, code: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason, "error": {"code": code}}


FORBIDDEN = failed("Not authorized to perform the required action.", "AuthorizationFailure")
MISSING = failed("Target resolution returned empty set.", "InvalidTarget")


def at_once(seconds: float) -> None:
    """There is nothing to wait for."""


@pytest.fixture
def aws() -> Iterator[Aws]:
    with mock_aws():
        yield Aws(REGION)


def test_a_notice_is_an_experiment_on_that_instance_and_leaves_no_template(aws: Aws) -> None:
    fault_injection.interrupt(aws, "i-0a1b2c3d4e5f60718", 120.0, sleep=at_once)
    fault_injection.interrupt(aws, "i-0a1b2c3d4e5f60718", 900.0, sleep=at_once)
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
    fault_injection.interrupt(aws, "i-0a1b2c3d4e5f60718", 120.0, sleep=at_once)
    iam = boto3.client("iam", region_name=REGION)
    name = f"spotelastic-fis-{REGION}"
    trust = iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
    assert trust["Statement"][0]["Principal"] == {"Service": "fis.amazonaws.com"}
    policy = iam.get_role_policy(RoleName=name, PolicyName="spotelastic")["PolicyDocument"]
    actions = {statement["Action"] for statement in policy["Statement"]}
    assert actions == {"ec2:DescribeInstances", "ec2:SendSpotInstanceInterruptions"}
    (statement,) = [s for s in policy["Statement"] if s["Action"] != "ec2:DescribeInstances"]
    assert "spotelastic:cluster" in json.dumps(statement["Condition"])


@dataclass
class Fis:
    """Refuses so many experiments, and counts what was asked."""

    refusals: float = 0
    why: str = "Unable to assume role"
    states: Sequence[dict[str, Any]] = (RUNNING,)
    """Of an experiment, at one look after the other; the last one stays."""
    asked: int = 0
    looks: int = 0
    templates: int = 0

    def create_experiment_template(self, **_: Any) -> dict[str, Any]:
        self.templates += 1
        return {"experimentTemplate": {"id": "EXT1"}}

    def delete_experiment_template(self, **_: Any) -> None:
        self.templates -= 1

    def start_experiment(self, **_: Any) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= self.refusals:
            answer: Any = {"Error": {"Code": "ValidationException", "Message": self.why}}
            raise ClientError(answer, "StartExperiment")
        return {"experiment": {"id": f"EXP{self.asked}", "state": INITIATING}}

    def get_experiment(self, id: str) -> dict[str, Any]:
        assert id == f"EXP{self.asked}"
        state = self.states[min(self.looks, len(self.states) - 1)]
        self.looks += 1
        return {"experiment": {"id": id, "state": state}}


class Time:
    """Passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def interrupted(aws: Aws, fis: Fis) -> float:
    """Seconds that it took."""
    aws.fis = fis
    time = Time()
    try:
        fault_injection.interrupt(aws, NODE, 120.0, clock=lambda: time.now, sleep=time.sleep)
    finally:
        assert fis.templates == 0
    return time.now - 100.0


def test_a_role_that_was_just_made_is_waited_for(aws: Aws) -> None:
    fis = Fis(refusals=3)
    took = interrupted(aws, fis)
    assert (fis.asked, 0 < took < KNOWN_WITHIN) == (4, True)


def test_a_role_that_is_never_taken_is_told_after_a_minute(aws: Aws) -> None:
    fis = Fis(refusals=float("inf"))
    with pytest.raises(Rejected, match=f"cannot interrupt {NODE}: Unable to assume role"):
        interrupted(aws, fis)
    assert 10 < fis.asked < KNOWN_WITHIN


def test_nothing_else_is_waited_for(aws: Aws) -> None:
    other = Fis(refusals=1, why="Target resolution returned empty set")
    with pytest.raises(Rejected, match="empty set"):
        interrupted(aws, other)
    known = Fis(refusals=1)
    with pytest.raises(Rejected, match="assume role"):
        interrupted(aws, known)
    assert (other.asked, known.asked) == (1, 1), "the role was made by the first of them"


def test_an_experiment_that_begins_slowly_is_waited_for(aws: Aws) -> None:
    fis = Fis(states=(INITIATING, INITIATING, RUNNING))
    assert 0 < interrupted(aws, fis) < 2.0
    assert (fis.asked, fis.looks) == (1, 3)


def test_one_that_never_begins_is_told(aws: Aws) -> None:
    fis = Fis(states=(INITIATING,))
    with pytest.raises(Unavailable, match=f"of {NODE} has not begun, .*: not after 120 s"):
        interrupted(aws, fis)
    assert fis.asked == 1


def test_one_that_fails_because_its_role_was_just_made_is_begun_again(aws: Aws) -> None:
    fis = Fis(states=(INITIATING, FORBIDDEN, INITIATING, RUNNING))
    took = interrupted(aws, fis)
    assert (fis.asked, 0 < took < KNOWN_WITHIN) == (2, True)
    known = Fis(states=(FORBIDDEN,))
    with pytest.raises(Rejected, match="Not authorized"):
        interrupted(aws, known)
    assert known.asked == 1


@pytest.mark.parametrize("status", ["failed", "stopped", "cancelled"])
def test_one_that_fails_otherwise_is_told_with_the_reason(aws: Aws, status: str) -> None:
    fis = Fis(states=(INITIATING, {**MISSING, "status": status}))
    with pytest.raises(Rejected, match=r"cannot interrupt .*: Target .* empty set.*InvalidTarget"):
        interrupted(aws, fis)
    assert fis.asked == 1


def test_whoever_interrupts_may_make_every_call_for_it(aws: Aws) -> None:
    called: list[str] = []
    aws.fis.meta.events.register("before-call", lambda model, **_: called.append(model.name))
    fault_injection.interrupt(aws, NODE, 120.0, sleep=at_once)
    assert {"StartExperiment", "GetExperiment"} < set(called)
    arn = f"arn:aws:fis:{REGION}:123456789012"
    touched = (Resource(f"{arn}:experiment-template/EXT1"), Resource(f"{arn}:experiment/EXP1"))
    asked = [AccessRequest(f"fis:{each}", touched) for each in called]
    assert [each for each in asked if not permits([shipped(), additions()], each)] == []
    assert not [each for each in asked if permits([shipped()], each)]


def test_whoever_interrupts_may_have_the_service_make_its_own_role() -> None:
    def may(service: str, role: str) -> bool:
        arn = f"arn:aws:iam::123456789012:role/aws-service-role/{service}/{role}"
        circumstances = {"iam:AWSServiceName": service}
        asked = AccessRequest("iam:CreateServiceLinkedRole", (Resource(arn),), circumstances)
        return permits([shipped()], asked)

    assert may("fis.amazonaws.com", "AWSServiceRoleForFIS")
    assert may("spot.amazonaws.com", "AWSServiceRoleForEC2Spot")
    assert not may("ecs.amazonaws.com", "AWSServiceRoleForECS")
