"""Follows a job through the status and events that its cluster publishes, until the job ends."""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from spotelastic.client.progress import ProgressMessage, Update, ended
from spotelastic.client.targets.cloud_target import ClusterTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Event, Point, Report, Status

EVERY = 0.5
"""Seconds between two looks."""
PATIENCE = 60.0
"""Seconds without an answer from the cluster's bucket before the watch gives up."""
SILENCE = 90.0
"""Seconds without a first status before its absence is reported, and reported again."""
ASKED_EVERY = 15.0
"""Seconds between two questions to the cloud why control nodes do not come."""
REPORT_TIMEOUT = 30.0
"""Seconds that the report may arrive after the end of the job."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended: its last status, its report, its curve and its events."""

    status: Status
    report: Report
    points: tuple[Point, ...]
    events: tuple[Event, ...]


class ControlNodesMissing(EnvironmentFailure):
    """The control nodes of a new cluster will not come."""


class EventsTold:
    """Remembers which events have been told.

    They are stored in the order of their times on many machines' clocks, and the oldest may be
    dropped. So a new one can stand anywhere, and their number says nothing.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._told = Counter(map(msgspec.json.encode, events))

    def new(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield those that have not been told; each counts as told from then on."""
        seen = Counter[bytes]()
        for event in events:
            encoded = msgspec.json.encode(event)
            seen[encoded] += 1
            if seen[encoded] > self._told[encoded]:
                self._told[encoded] += 1
                yield event


def updates(
    target: ClusterTarget, cluster: ShownCluster, told: EventsTold, *, is_new: bool = False
) -> Iterator[Update]:
    """Yield the status at each look, after the events that are new; end with the end of the job.

    Where the job has stopped only to go on in another region, that status is not yielded. `is_new`:
    the cluster was just made.

    Raises `CloudEnded` if nothing is left to look at, and `Unavailable` if the bucket has not
    answered for a minute; of a new cluster, `ControlNodesMissing` if no control node will come.
    """
    silence = _Silence(target.where_to_look)
    answered = steady()
    while True:
        target.check()
        try:
            events = cluster.objects.events()
            status = cluster.objects.status()
            answered = steady()
        except Unavailable:
            if steady() > answered + PATIENCE:
                raise
            events, status = [], None
        yield from told.new(events)
        if status is None:
            yield from silence.lasts()
            if is_new and silence.is_to_be_asked_about():
                _check_control(target, cluster, silence.lasted)
        else:
            silence.ends()
            if ended(status) and goes_to(cluster):
                return
            yield status
            if ended(status):
                return
        threading.Event().wait(EVERY)


def goes_to(cluster: ShownCluster) -> str:
    """Return the region in which a job that moves by itself goes on; empty if it has really ended.

    One that somebody moves ends here: that command tells the rest.
    """
    moving = None if cluster.spec.regions is None else cluster.objects.moving()
    return moving.region if moving is not None and moving.reason else ""


def _check_control(target: ClusterTarget, cluster: ShownCluster, waited: float) -> None:
    """Raise `ControlNodesMissing` if no control node will come."""
    try:
        why = target.control_failure(cluster.name, waited)
    except Unavailable:
        return
    if why:
        raise ControlNodesMissing(f"{cluster.name}: {why}")


class _Silence:
    """Tells that the first status is awaited, and after a while where to look for the cause."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._told = False
        self._since, self._asked = steady(), -math.inf
        self._until = self._since + SILENCE

    @property
    def lasted(self) -> float:
        """Seconds without a status."""
        return steady() - self._since

    def is_to_be_asked_about(self) -> bool:
        """Return whether it is time to ask the cloud for the cause."""
        now = steady()
        if now < self._asked + ASKED_EVERY:
            return False
        self._asked = now
        return True

    def lasts(self) -> Iterator[ProgressMessage]:
        """Note that there is still no status."""
        if not self._told:
            self._told = True
            yield ProgressMessage("waiting for the control nodes to boot and report")
        if steady() > self._until:
            self._until = steady() + SILENCE
            yield ProgressMessage(
                f"the control nodes have not reported for {SILENCE:.0f} s: {self._where}"
            )

    def ends(self) -> None:
        """Note that there is a status."""
        self._told, self._until = True, math.inf


def outcome(cluster: ShownCluster, status: Status) -> JobOutcome:
    """Return how a job that has ended came out; waits for the report, which is written last."""
    deadline = steady() + REPORT_TIMEOUT
    while (report := cluster.objects.report()) is None or report.job.state not in ENDED:
        if steady() > deadline:
            raise EnvironmentFailure(
                f"{cluster.name} has ended ({status.state}) but left no report: "
                "see `spotelastic events`"
            )
        threading.Event().wait(EVERY)
    objects = cluster.objects
    return JobOutcome(status, report, tuple(objects.curve()), tuple(objects.events()))
