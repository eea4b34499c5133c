"""Reads what a cluster has published, as often as each part of it is worth asking for."""

import contextlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Generic, TypeVar

from spotelastic_checkpoints.catalog.catalog import Catalog, StepEntry
from spotelastic_checkpoints.errors import CheckpointsError

from spotelastic.client.cluster import Cluster
from spotelastic.client.published import rates_of
from spotelastic.client.targets.cloud_target import CloudEnded
from spotelastic.client.targets.find import following, goes_on_by, holding, left_target
from spotelastic.clock import Clock, steady, wall
from spotelastic.errors import SpotelasticError
from spotelastic.model.job import TAKEN_DOWN
from spotelastic.model.progress import Report
from spotelastic.web.page.render import report_page
from spotelastic.web.view.cluster_view import cluster_view
from spotelastic.web.view.published import PublishedCluster

T = TypeVar("T")
OFTEN, SOMETIMES, SELDOM = 2.0, 5.0, 20.0
"""Seconds between two looks at what changes with the job, at what grows with it, and at what asks
many objects or services.
"""
MANY = 2000
"""For each so many rows of a list the next look is a second later: it is read whole each time."""
ALL_EVENTS = 5000
"""Most events of a report."""


class KeptAnswer(Generic[T]):
    """The answer to one question, kept for `every` seconds.

    The question is asked again when the answer is that old, or when what it is an answer to has
    changed.

    That of a long list, which takes long to read and costs traffic, is asked for later.
    """

    def __init__(self, every: float, ask: Callable[[], T], clock: Clock) -> None:
        self._every = every
        self._ask = ask
        self._clock = clock
        self._kept: tuple[float, T] | None = None
        self._of = 0

    def get(self, of: int = 0) -> T:
        """Return the answer. `of` names what it is an answer to, where that changes."""
        now, kept = self._clock(), self._kept
        if kept is None or of != self._of or now >= kept[0] + self._every + _rows(kept[1]) / MANY:
            kept = self._kept = now, self._ask()
            self._of = of
        return kept[1]


def _rows(answer: object) -> int:
    return len(answer) if isinstance(answer, tuple) else 0


class ClusterReader:
    """Reads one cluster, again and again.

    The status is new at each look. What is large, or costs calls to read, is up to some seconds
    old; the list of checkpoints is read again as soon as the status has another commit.
    Raises `Unavailable` if the bucket does not answer.
    """

    def __init__(self, cluster: Cluster, clock: Clock = steady) -> None:
        self.cluster = cluster
        self._ends = 0
        """How often it has ended with its cloud: what is asked seldom is asked again then."""
        self._is_gone = KeptAnswer(SELDOM, self._ask_whether_gone, clock)
        self._events = KeptAnswer(OFTEN, cluster.events, clock)
        self._report = KeptAnswer(OFTEN, self._read_report, clock)
        self._regions = KeptAnswer(SOMETIMES, self._ask_regions, clock)
        self._curve = KeptAnswer(SOMETIMES, cluster.curve, clock)
        self._measured = KeptAnswer(SOMETIMES, cluster.measured, clock)
        self._cost = KeptAnswer(SOMETIMES, cluster.cost, clock)
        self._rates = KeptAnswer(SOMETIMES, lambda: rates_of(self.cluster.record), clock)
        self._checkpoints = KeptAnswer(SELDOM, self._list_checkpoints, clock)

    def read(self) -> PublishedCluster:
        """Return what is published now."""
        try:
            self.cluster.target.check()
        except CloudEnded:
            if not self._goes_on_with_what_is_left():
                raise
        # First: a job that was moved is followed to another region.
        is_gone = self._is_gone.get(of=self._ends)
        cluster = self.cluster
        status = cluster.status()
        was_taken_down = status.state == TAKEN_DOWN
        spec = cluster.record.spec
        warning = spec.validity.warning(cluster.name, wall())
        is_gone = is_gone or was_taken_down
        rates = self._rates.get()
        if is_gone:  # no controller saw its instances end
            rates = (*(each for each in rates if each[0] < status.at), (status.at, 0.0))
        return PublishedCluster(
            status=status,
            events=self._events.get(),
            points=self._curve.get(),
            measured=self._measured.get(),
            report=self._report.get(),
            cost=self._cost.get(of=self._ends + was_taken_down),
            rates=rates,
            checkpoints=self._checkpoints.get(of=status.committed),
            script=spec.script,  # without its arguments, which may hold secrets
            sizes=(spec.settings.min_nodes, spec.settings.max_nodes),
            warnings=(warning,) if warning else (),
            regions=self._regions.get(),
            is_gone=is_gone,
            goes_on_by=goes_on_by(cluster.target, cluster.record),
        )

    def _goes_on_with_what_is_left(self) -> bool:
        """Read the cluster from this machine, as its local cloud has ended; False: it cannot be."""
        left = left_target(self.cluster.name, None)
        if left is None:
            return False
        self.cluster.target = left
        self.cluster.record = left.cluster_or_gone(None, _unsaid)
        self._ends += 1
        return True

    def _ask_whether_gone(self) -> bool:
        """Look for the cluster, whose job may be described anew by now, or be in another region."""
        its = self.cluster
        at = holding(its.target, its.name, _unsaid)
        known = at.known(its.name)
        if known is None:
            return True
        if (there := following(at, known, _unsaid)) is not at:
            at, known = there, there.cluster(its.name)
        its.target, its.record = at, known
        return False

    def _read_report(self) -> Report | None:
        return self.cluster.record.objects.report()

    def _ask_regions(self) -> str:
        record = self.cluster.regions()
        return record.reason if record is not None else ""

    def _list_checkpoints(self) -> tuple[StepEntry, ...] | None:
        """Return the stored checkpoints; None if their storage does not answer."""
        with contextlib.suppress(SpotelasticError, CheckpointsError, OSError):
            url = self.cluster.record.spec.storage
            with closing(self.cluster.target.storage(url)) as there:
                return tuple(Catalog(there).entries())
        return None


def _unsaid(line: str) -> None:
    """Leave out a line for a terminal."""


def html_report(cluster: Cluster) -> str:
    """Return the report of a cluster as a page that is one file."""
    view = cluster_view(ClusterReader(cluster).read(), wall(), most_events=ALL_EVENTS)
    return report_page(view)


def write_html(page: str, file: Path) -> None:
    """Write a page; what no encoding can hold is written as its number."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, "utf-8", errors="backslashreplace")
