"""Parses AWS's events about instances into values (pure).

Only this module reads what EventBridge puts on the queue. Events of unknown kinds and unreadable
bodies become values too: they are counted and stop nothing.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from spotelastic.cloud.events import (
    CloudEvent,
    FailureCause,
    GroupActivity,
    LifecycleAction,
    Malformed,
    Rebalance,
    SpotWarning,
    StateChange,
    Unknown,
)

QUOTA = re.compile(r"LimitExceeded|count ?exceeded|(vCPU|instance) limit", re.IGNORECASE)
"""Matches what AWS says of launches that a quota does not allow: an error code, or only its
text.
"""


def parse(body: str) -> CloudEvent:
    """Return the event in a message's body. Never raises."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError) as error:
        return Malformed(f"no JSON: {error}")
    if not isinstance(event, dict):
        return Malformed("no JSON object")
    try:
        id, at, kind = str(event["id"]), _moment(event["time"]), str(event["detail-type"])
        reader = READERS.get((str(event.get("source", "")), kind))
        return Unknown(id, at, kind) if reader is None else reader(id, at, event["detail"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Malformed(f"{type(error).__name__}: {error}")


def _spot_warning(id: str, at: float, detail: Mapping[str, Any]) -> CloudEvent:
    return SpotWarning(id, at, _text(detail, "instance-id"))


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
        return GroupActivity(
            id,
            at,
            instance=str(detail.get("EC2InstanceId", "")),
            group=_text(detail, "AutoScalingGroupName"),
            name=name,
            succeeded=succeeded,
            message=message,
            zone=str((detail.get("Details") or {}).get("Availability Zone", "")),
            cause="other" if succeeded else cause_of(message),
        )

    return read


def cause_of(message: str) -> FailureCause:
    """Return why a launch failed, by AWS's message about it."""
    if QUOTA.search(message):
        return "quota"
    return "capacity" if "apacity" in message else "other"


READERS: Mapping[tuple[str, str], Callable[[str, float, Mapping[str, Any]], CloudEvent]] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): _spot_warning,
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): _rebalance,
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


def _moment(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
