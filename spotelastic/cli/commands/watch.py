"""Follows a job through the status and events that its cluster publishes, until the job ends."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from spotelastic.aws.clusters.lifecycle import Cluster
from spotelastic.cli.render.progress import ProgressView
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Event, Point, Report, Status

QUIET = frozenset({"committed"})
"""Events that are not shown one by one, because the status line shows them."""
EVERY = 0.5
"""Seconds between two looks."""
PATIENCE = 60.0
"""Seconds without an answer from the cluster's bucket before the watch gives up."""
SILENCE = 90.0
"""Seconds without a first status before its absence is reported, and reported again."""
REPORT_TIMEOUT = 30.0
"""Seconds that the report may arrive after the end of the job."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended: its last status, its report, its curve and its events."""

    status: Status
    report: Report
    points: tuple[Point, ...]
    events: tuple[Event, ...]


def watch(
    cluster: Cluster,
    view: ProgressView,
    *,
    until: Callable[[Status], bool],
    look: Callable[[Status], None],
    alive: Callable[[], None],
    silent: str,
    told: int = 0,
) -> Status:
    """Show the status and new events until `until` holds; return the last status.

    Each status is handed to `look`. The first `told` events are not new. `alive` is called before
    each look, and raises if nothing is left to look at. `silent` tells where to look if the cluster
    publishes nothing for too long.
    """
    silence = _Silence(view.say, silent)
    answered = steady()
    while True:
        alive()
        try:
            events = cluster.objects.events()
            status = cluster.objects.status()
            answered = steady()
        except Unavailable:
            if steady() > answered + PATIENCE:
                raise
            events, status = [], None
        for event in events[told:]:
            if event.kind not in QUIET:
                view.event(event)
        told = max(told, len(events))
        if status is None:
            silence.lasts()
        else:
            silence.ends()
            view.status(status)
            look(status)
            if until(status):
                return status
        threading.Event().wait(EVERY)


class _Silence:
    """Reports that the first status is awaited, and after a while where to look for the cause."""

    def __init__(self, say: Callable[[str], None], where: str) -> None:
        self._say = say
        self._where = where
        self._told = False
        self._until = steady() + SILENCE

    def lasts(self) -> None:
        """Note that there is still no status."""
        if not self._told:
            self._told = True
            self._say("waiting for the control nodes to boot and report")
        if steady() > self._until:
            self._say(f"the control nodes have not reported for {SILENCE:.0f} s: {self._where}")
            self._until = steady() + SILENCE

    def ends(self) -> None:
        """Note that there is a status."""
        self._told, self._until = True, math.inf


def ended(status: Status) -> bool:
    """Whether the job has ended."""
    return status.state in ENDED


def training(status: Status) -> bool:
    """Whether the first round has started, or the job is already over."""
    return ended(status) or any(node.state == "training" for node in status.nodes)


def outcome(cluster: Cluster, status: Status) -> JobOutcome:
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
