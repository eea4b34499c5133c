"""Parses AWS's events about instances into values (pure).

Only this module reads what EventBridge puts on the queue. Events of unknown kinds and unreadable
bodies become values too: they are counted and stop nothing.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from spotelastic.aws.base.moments import moment
from spotelastic.aws.messaging import launch_failures
from spotelastic.aws.messaging.launch_failures import LaunchFailure
from spotelastic.cloud.events import (
    WARNED_AHEAD,
    BlockEnds,
    CloudEvent,
    GroupActivity,
    LifecycleAction,
    Malformed,
    Rebalance,
    ScheduledChange,
    SpotWarning,
    StateChange,
    Unknown,
)

HEALTH = "AWS Health Event"
HIBERNATE = "hibernate"
BLOCK_ENDS_AHEAD = 1800.0
"""Seconds before the end of a Capacity Block at which AWS begins to end its instances."""
RETIRES = re.compile(r"RETIREMENT|INSTANCE_STOP")
"""Matches the codes of changes after which an instance does not come back by itself."""
LONGEST_PROBLEM = 300
"""Characters that are told of a message that cannot be read."""


def parse(body: str) -> CloudEvent:
    """Return the event in a message's body. Never raises."""
    try:
        event = json.loads(body)
        if not isinstance(event, dict):
            return Malformed("no JSON object")
        id, at, kind = str(event["id"]), moment(event["time"]), str(event["detail-type"])
        reader = READERS.get((str(event.get("source", "")), kind))
        return Unknown(id, at, kind) if reader is None else reader(id, at, event["detail"])
    except Exception as error:  # whatever stands in it must not end the thread that reads it
        return Malformed(f"{type(error).__name__}: {error}"[:LONGEST_PROBLEM])


def _spot_warning(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    action = str(detail.get("instance-action", ""))
    # A hibernation begins at once, and is not announced two minutes ahead.
    ahead = 0.0 if action == HIBERNATE else WARNED_AHEAD
    return SpotWarning(id, at, _text(detail, "instance-id"), ahead, action)


def _reservation_warning(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    """Of an instance in a reservation that its owner may take back."""
    ends = moment(detail.get("instance-termination-time"))
    action = str(detail.get("instance-action", ""))
    return SpotWarning(id, at, _text(detail, "instance-id"), max(0.0, ends - at), action)


def _block_ends(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    begins = moment(detail.get("end-date")) - BLOCK_ENDS_AHEAD
    return BlockEnds(id, at, _text(detail, "capacity-reservation-id"), begins)


def _health(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    """Of AWS Health: only scheduled changes of instances concern a cluster.

    What has gone wrong already is seen where it does.
    """
    code = str(detail.get("eventTypeCode", ""))
    is_change = str(detail.get("eventTypeCategory", "")) == "scheduledChange"
    if not is_change or str(detail.get("service", "")) != "EC2":
        return Unknown(id, at, HEALTH)
    affected = [
        str(entity["entityValue"]).rpartition("/")[2]  # an id, or an ARN that ends with it
        for entity in detail.get("affectedEntities") or ()
        if str(entity.get("status", "")).upper() != "RESOLVED"
    ]
    instances = tuple(dict.fromkeys(each for each in affected if each.startswith("i-")))
    if not instances:
        return Unknown(id, at, HEALTH)
    return ScheduledChange(
        id,
        at,
        instances,
        begins=moment(detail.get("startTime")),
        change=str(detail.get("eventArn", "")),
        action=code,
        ends=bool(RETIRES.search(code)),
        called_off=str(detail.get("statusCode", "")) == "closed",
    )


def _rebalance(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    return Rebalance(id, at, _text(detail, "instance-id"))


def _state_change(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    return StateChange(id, at, _text(detail, "instance-id"), _text(detail, "state"))


def _lifecycle(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    return LifecycleAction(
        id,
        at,
        instance=_text(detail, "EC2InstanceId"),
        group=_text(detail, "AutoScalingGroupName"),
        transition=_text(detail, "LifecycleTransition").rpartition("_")[2],
        hook=_text(detail, "LifecycleHookName"),
    )


def _activity(name: str, succeeded: bool) -> Callable[[str, float, Mapping[str, Any]], CloudEvent]:
    def read(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
        message = str(detail.get("StatusMessage") or detail.get("Cause") or "")
        why = LaunchFailure() if succeeded else launch_failures.read(message)
        return GroupActivity(
            id,
            at,
            instance=str(detail.get("EC2InstanceId", "")),
            group=_text(detail, "AutoScalingGroupName"),
            name=name,
            succeeded=succeeded,
            message=message,
            zone=str((detail.get("Details") or {}).get("Availability Zone", "")),
            cause=why.cause,
            limit=why.limit,
        )

    return read


READERS: Mapping[tuple[str, str], Callable[[str, float, Mapping[str, Any]], CloudEvent]] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): _spot_warning,
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): _rebalance,
    ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"): _reservation_warning,
    ("aws.ec2", "Capacity Block Reservation Expiration Warning"): _block_ends,
    ("aws.ec2", "Capacity Block Expiration Warning"): _block_ends,
    ("aws.health", HEALTH): _health,
    ("aws.ec2", "EC2 Instance State-change Notification"): _state_change,
    ("aws.autoscaling", "EC2 Instance-launch Lifecycle Action"): _lifecycle,
    ("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action"): _lifecycle,
    ("aws.autoscaling", "EC2 Instance Launch Successful"): _activity("launch", True),
    ("aws.autoscaling", "EC2 Instance Launch Unsuccessful"): _activity("launch", False),
    ("aws.autoscaling", "EC2 Instance Terminate Successful"): _activity("terminate", True),
    ("aws.autoscaling", "EC2 Instance Terminate Unsuccessful"): _activity("terminate", False),
}


def _text(detail: Mapping[str, Any], field: str) -> str:
    value = detail[field]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{field} is {value!r}")
    return value
