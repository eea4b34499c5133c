"""Follows a job through what its cluster publishes, until it has ended."""

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
"""Events that the status line tells as well."""
EVERY = 0.5
"""Seconds between two looks."""
PATIENCE = 60.0
"""Seconds without an answer from the cluster's bucket before the watch gives up."""
SILENCE = 90.0
"""Seconds until the first status after which its absence is told, and told again."""
REPORT_TIMEOUT = 30.0
"""Seconds that the report may come after the end."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How the job ended, and its last account of itself."""

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
    """Shows the status and new events, and hands each status to `look`, until `until` holds.

    The first `told` events are not new. `alive` is asked before each look, and raises when there is
    nothing left to look at. `silent` says where to look when the cluster publishes nothing for too
    long.
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
    """Before the first status: tells that it is waited for, and later where to look for it."""

    def __init__(self, say: Callable[[str], None], where: str) -> None:
        self._say = say
        self._where = where
        self._told = False
        self._until = steady() + SILENCE

    def lasts(self) -> None:
        if not self._told:
            self._told = True
            self._say("waiting for the control nodes to boot and report")
        if steady() > self._until:
            self._say(f"the control nodes have not reported for {SILENCE:.0f} s: {self._where}")
            self._until = steady() + SILENCE

    def ends(self) -> None:
        self._told, self._until = True, math.inf


def ended(status: Status) -> bool:
    return status.state in ENDED


def training(status: Status) -> bool:
    """A first round has started, or the job is over already."""
    return ended(status) or any(node.state == "training" for node in status.nodes)


def outcome(cluster: Cluster, status: Status) -> JobOutcome:
    """The report of a job that has ended; the controller writes it last."""
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
