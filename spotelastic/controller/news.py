"""What is new since AWS was looked at, and whether it has to be looked at first (pure).

Looking takes several calls, one after the other. A node that is warned is replaced before: what is
known of it is enough for that, and its two minutes are running.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from spotelastic.aws.autoscaling import Group
from spotelastic.aws.events import AwsEvent, SpotWarning
from spotelastic.controller.observe import Records
from spotelastic.model.job import Job


@dataclass(frozen=True, slots=True)
class Membership:
    """What of the run's keys comes with a change of AWS's state."""

    nodes: Set[str]
    drains: Set[str]
    job: Job | None

    @classmethod
    def of(cls, records: Records) -> "Membership":
        return cls(records.nodes.keys(), records.drains.keys(), records.job)


def only_warnings(
    before: Membership | None,
    now: Membership,
    events: Sequence[AwsEvent],
    groups: Iterable[Group],
) -> bool:
    """Whether nothing is new but warnings, by AWS's events or by the agents, to nodes that stayed
    in their groups when AWS was looked at. `before` is of that moment; None: none is known."""
    warnings = [event for event in events if isinstance(event, SpotWarning)]
    if before is None or len(warnings) < len(events):
        return False
    if (now.nodes, now.job) != (before.nodes, before.job):
        return False
    warned = {event.instance for event in warnings} | (now.drains - before.drains)
    places = [place for group in groups for place in group.places]
    return bool(warned) and warned <= {place.instance for place in places if not place.leaving}
