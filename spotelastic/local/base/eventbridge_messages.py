"""Builds and delivers AWS's events about instances and Auto Scaling groups, in AWS's own format.

Of their details they have those that the controller reads.

Sources in the EC2 user guide: "Events for Amazon EC2 Spot Instance interruptions", "EC2 instance
rebalance recommendations", "Amazon EC2 instance state change events". In the Auto Scaling user
guide: "Amazon EC2 Auto Scaling event reference".
"""

import json
import logging
from dataclasses import dataclass
from typing import Any

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
STATE = "EC2 Instance State-change Notification"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BusEvent:
    """One event."""

    source: str
    type: str
    """The event's detail-type."""
    resources: tuple[str, ...]
    detail: dict[str, Any]

    @property
    def region(self) -> str:
        """The region of the first thing that it is about; empty if that is not known."""
        named = self.resources[0].split(":") if self.resources else ()
        return named[3] if len(named) > 3 else str(self.detail.get("eventRegion", ""))


def of_instance(type: str, region: str, instance: str, **detail: str) -> BusEvent:
    """Return an event about an instance."""
    arn = f"arn:aws:ec2:{region}:instance/{instance}"
    return BusEvent("aws.ec2", type, (arn,), {"instance-id": instance, **detail})


def lifecycle_action(group: Any, instance: str, hook: Any, token: str) -> BusEvent:
    """Return the event of an instance that waits for its end; `group` and `hook` are moto's."""
    detail = {
        "LifecycleActionToken": token,
        "AutoScalingGroupName": group.name,
        "LifecycleHookName": hook.name,
        "EC2InstanceId": instance,
        "LifecycleTransition": hook.lifecycle_transition,
    }
    return BusEvent(
        "aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", (group.arn,), detail
    )


def activity_ended(group: Any, activity: Any, instance: str) -> BusEvent:
    """Return the event of a launch or termination that succeeded or failed."""
    verb = "Launch" if activity.launching else "Terminate"
    outcome = "Successful" if activity.status_code == "Successful" else "Unsuccessful"
    arn = f"arn:aws:ec2:{group.region}:{group.account_id}:instance/{instance}"
    return BusEvent(
        "aws.autoscaling",
        f"EC2 Instance {verb} {outcome}",
        (group.arn, arn) if instance else (group.arn,),
        {
            "AutoScalingGroupName": group.name,
            "Details": activity.place,
            "StatusMessage": activity.status_message or "",
            "EC2InstanceId": instance,
        },
    )


def put(backend: Any, event: BusEvent, at: float) -> None:
    """Deliver an event of time `at` to the targets of the default bus's matching rules.

    `backend` is moto's. As on AWS, a target that fails (a deleted queue) does not affect the
    others.
    """
    entry = {
        "Source": event.source,
        "DetailType": event.type,
        "Resources": list(event.resources),
        "Detail": json.dumps(event.detail),
        "Time": at,
    }
    try:
        backend.put_events([entry])
    except Exception:
        _log.exception("cannot deliver %s", event)
