"""Records scaling activities of the local cloud.

An activity is what a group tried to launch or end, and the outcome.
"""

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

from spotelastic.clock import wall

_KEPT = 200  # per group


def now() -> datetime:
    """Return the time as moto keeps it: UTC without a time zone."""
    return datetime.fromtimestamp(wall(), UTC).replace(tzinfo=None)


@dataclass(slots=True)
class Activity:
    """One launch or termination, with the attribute names that moto serializes."""

    auto_scaling_group_name: str
    launching: bool
    place: dict[str, str]
    """The event's Details."""
    activity_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    start_time: datetime = field(default_factory=now)
    status_code: str = "InProgress"
    status_message: str | None = None

    @property
    def details(self) -> str:
        """The event's Details, as JSON."""
        return json.dumps(self.place)

    def ended(self, status: str, message: str | None = None) -> None:
        """Close the activity with a status and message."""
        self.status_code, self.status_message = status, message


@dataclass
class Activities:
    """The recent activities of each group."""

    _by_group: dict[str, list[Activity]] = field(default_factory=dict)

    def begin(self, group: str, zone: str, *, launching: bool) -> Activity:
        """Open the activity of a launch, or of a termination."""
        activity = Activity(group, launching, {"Availability Zone": zone} if zone else {})
        kept = self._by_group.setdefault(group, [])
        kept.append(activity)
        del kept[:-_KEPT]
        return activity

    def of(self, group: str = "") -> list[Activity]:
        """Return the activities of one group or of all, newest first."""
        kept = [self._by_group.get(group, [])] if group else self._by_group.values()
        found = [activity for each in kept for activity in each]
        return sorted(found, key=lambda activity: activity.start_time, reverse=True)

    def forget(self, group: str) -> None:
        """Drop the activities of a deleted group."""
        self._by_group.pop(group, None)
