"""Reading AWS's events: the bodies are those of AWS's documentation, shortened."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.aws.messaging.eventbridge import READERS, parse
from spotelastic.cloud.events import (
    BlockEnds,
    GroupActivity,
    LifecycleAction,
    Malformed,
    Rebalance,
    ScheduledChange,
    SpotWarning,
    StateChange,
    Unknown,
)

AT = 1609459200.0


def body(source: str, kind: str, detail: Any) -> str:
    return json.dumps(
        {
            "version": "0",
            "id": "e1",
            "detail-type": kind,
            "source": source,
            "account": "123456789012",
            "time": "2021-01-01T00:00:00Z",
            "region": "us-east-1",
            "resources": [],
            "detail": detail,
        }
    )


HEALTH: dict[str, Any] = {
    "eventArn": "arn:aws:health:us-east-1::event/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED_9035340859",
    "service": "EC2",
    "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
    "eventTypeCategory": "scheduledChange",
    "startTime": "Fri, 1 Jan 2021 01:00:00 GMT",
    "statusCode": "open",
    "affectedEntities": [
        {
            "entityValue": "arn:aws:ec2:us-east-1:123456789012:instance/i-1234567890abcdef0",
            "status": "PENDING",
        },
        {"entityValue": "i-1234567890abcdef0", "status": "IMPAIRED"},
        {"entityValue": "i-0aaa", "status": "RESOLVED"},
        {"entityValue": "vol-0abc"},
    ],
}


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (
            body(
                "aws.ec2",
                "EC2 Spot Instance Interruption Warning",
                {"instance-id": "i-1", "instance-action": "terminate"},
            ),
            SpotWarning("e1", AT, "i-1", action="terminate"),
        ),
        (
            body("aws.ec2", "EC2 Instance Rebalance Recommendation", {"instance-id": "i-1"}),
            Rebalance("e1", AT, "i-1"),
        ),
        (
            body(
                "aws.ec2",
                "EC2 Instance State-change Notification",
                {"instance-id": "i-1", "state": "shutting-down"},
            ),
            StateChange("e1", AT, "i-1", "shutting-down"),
        ),
        (
            body(
                "aws.autoscaling",
                "EC2 Instance-terminate Lifecycle Action",
                {
                    "LifecycleActionToken": "87654321-4321-4321-4321-210987654321",
                    "AutoScalingGroupName": "workers",
                    "LifecycleHookName": "drain",
                    "EC2InstanceId": "i-1",
                    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
                },
            ),
            LifecycleAction("e1", AT, "i-1", "workers", "TERMINATING", "drain"),
        ),
        (
            body(
                "aws.autoscaling",
                "EC2 Instance Launch Unsuccessful",
                {
                    "AutoScalingGroupName": "workers",
                    "StatusMessage": "We currently do not have sufficient capacity.",
                    "EC2InstanceId": "",
                },
            ),
            GroupActivity(
                "e1",
                AT,
                "",
                "workers",
                "launch",
                False,
                "We currently do not have sufficient capacity.",
                cause="capacity",
            ),
        ),
        (
            body("aws.health", "AWS Health Event", {"service": "EC2"}),
            Unknown("e1", AT, "AWS Health Event"),
        ),
        (
            body(
                "aws.ec2",
                "EC2 Spot Instance Interruption Warning",
                {"instance-id": "i-1", "instance-action": "hibernate"},
            ),
            SpotWarning("e1", AT, "i-1", 0.0, "hibernate"),
        ),
        (
            body(
                "aws.ec2",
                "EC2 Capacity Reservation Instance Interruption Warning",
                {
                    "instance-id": "i-1",
                    "instance-action": "terminate",
                    "instance-termination-time": "2021-01-01T00:02:00Z",
                },
            ),
            SpotWarning("e1", AT, "i-1", 120.0, "terminate"),
        ),
        *(
            (
                body(
                    "aws.ec2",
                    f"Capacity Block {word}Expiration Warning",
                    {"capacity-reservation-id": "cr-1", "end-date": "2021-01-01T00:40:00Z"},
                ),
                BlockEnds("e1", AT, "cr-1", AT + 600.0),
            )
            for word in ("", "Reservation ")
        ),
        (
            body("aws.health", "AWS Health Event", HEALTH),
            ScheduledChange(
                "e1",
                AT,
                ("i-1234567890abcdef0",),
                AT + 3600.0,
                HEALTH["eventArn"],
                "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
                ends=True,
            ),
        ),
        (
            body("aws.health", "AWS Health Event", HEALTH | {"statusCode": "closed"}),
            ScheduledChange(
                "e1",
                AT,
                ("i-1234567890abcdef0",),
                AT + 3600.0,
                HEALTH["eventArn"],
                "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
                ends=True,
                called_off=True,
            ),
        ),
        (
            body("aws.health", "AWS Health Event", HEALTH | {"affectedEntities": []}),
            Unknown("e1", AT, "AWS Health Event"),
        ),
        (
            body("aws.health", "AWS Health Event", HEALTH | {"eventTypeCategory": "issue"}),
            Unknown("e1", AT, "AWS Health Event"),
        ),
    ],
)
def test_an_event_becomes_its_value(text: str, event: object) -> None:
    assert parse(text) == event


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"id": "e1"}',
        body("aws.ec2", "EC2 Spot Instance Interruption Warning", {}),
        body("aws.ec2", "EC2 Spot Instance Interruption Warning", None),
        body("aws.ec2", "EC2 Spot Instance Interruption Warning", {"instance-id": 7}),
        body("aws.ec2", "EC2 Instance State-change Notification", {"instance-id": "i-1"}),
        body("aws.ec2", "x", {}).replace("2021-01-01T00:00:00Z", "yesterday"),
        body("aws.health", "AWS Health Event", HEALTH | {"startTime": "soon"}),
        body("aws.health", "AWS Health Event", HEALTH | {"affectedEntities": 7}),
        body("aws.health", "AWS Health Event", HEALTH | {"affectedEntities": [[]]}),
        body("aws.ec2", "Capacity Block Reservation Expiration Warning", {"end-date": "soon"}),
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"id": ' + "[" * 900 + "]" * 900 + ', "time": "2021-01-01T00:00:00Z"}',
        "9" * 10_000,
        "<html><body>502 Bad Gateway</body></html>",
    ],
)
def test_a_body_that_makes_no_sense_is_a_value_too(text: str) -> None:
    assert isinstance(parse(text), Malformed)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(json_values)
def test_no_detail_whatever_breaks_the_reader(detail: object) -> None:
    for source, kind in READERS:
        assert parse(body(source, kind, detail)) is not None


@given(st.dictionaries(st.sampled_from(sorted(HEALTH)), json_values))
def test_no_field_whatever_breaks_the_reader(fields: dict[str, object]) -> None:
    read = parse(body("aws.health", "AWS Health Event", HEALTH | fields))
    assert isinstance(read, ScheduledChange | Unknown | Malformed)


@given(st.text())
def test_no_body_whatever_breaks_the_reader(text: str) -> None:
    assert parse(text) is not None
