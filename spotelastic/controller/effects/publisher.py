"""Publishes what the command line reads to the bucket: status, events, curve, bill and report.

It has a thread of its own, so that a slow object store holds up nothing. The status goes last: a
reader that sees the job's end there finds the report as well.
"""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace

import msgspec
from spotelastic_checkpoints.backoff import Backoff, Draw

from spotelastic.clock import Clock, steady, unbroken
from spotelastic.cloud import bucket
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.controller.accounting import ledger, troubles
from spotelastic.controller.accounting.ledger_events import entries
from spotelastic.controller.accounting.moved import joined
from spotelastic.controller.accounting.status import Account, status
from spotelastic.controller.decisions.throttle import JITTER
from spotelastic.controller.effects.complaint import Complaint
from spotelastic.errors import told
from spotelastic.metrics.job import PublishedFacts
from spotelastic.model.job import ENDED, Job
from spotelastic.model.progress import Earlier, Event, Report, Status

logger = logging.getLogger(__name__)

EVERY = 0.25
"""Least seconds between two publications."""
PROGRESS_EVERY = 1.0
"""Least seconds between two that differ in progress alone: each is paid for."""
RARELY = {bucket.REPORT: 5.0, bucket.CURVE: 5.0, bucket.MEASURED: 5.0}
"""Seconds between two publications of these objects while the job runs."""
HEARTBEAT = 10.0
"""Seconds after which the status is published unchanged, as a sign that a controller leads."""
BYTES_PER_SECOND = 500_000
"""Traffic that no object may exceed on average: larger ones are published less often."""
RETRY_AT_MOST = 30.0
"""Longest pause, in seconds, while the object store fails."""


def _unheard(facts: PublishedFacts) -> None:
    """Take what was published where nobody wants to know."""


class Publisher:
    """Publishes the newest account that it was given; older ones are skipped."""

    def __init__(
        self,
        store: ClusterBucket,
        etcd_leader: Callable[[], str],
        alive: Callable[[], bool],
        clock: Clock = unbroken,
        draw: Draw = random.uniform,
        shows: Callable[[PublishedFacts], None] = _unheard,
    ) -> None:
        """`etcd_leader` returns the member that leads etcd; it is called before each publication.

        `alive` tells whether the leadership's lease is still held: nothing is written without it.
        `shows` is given all that is published, as it changes.
        """
        self._objects = store
        self._etcd_leader = etcd_leader
        self._alive = alive
        self._clock = clock
        self._draw = draw
        self._backoff = Backoff(EVERY, RETRY_AT_MOST, jitter=JITTER)
        self._complain = Complaint(logger.warning)
        self._wake = threading.Condition()
        self._offered: Account | None = None
        self._offers = 0
        self._published = 0
        """How many offers were made until the newest one that is published as a whole."""
        self._finishing = False
        self._closed = False
        self._written: dict[str, bytes] = {}
        self._not_before: dict[str, float] = {}
        self._status: Status | None = None
        self._status_at = 0.0
        self._shows = shows
        self._made: Report | None = None
        self._earlier: Earlier | None = None
        """What the job did in the region that it was moved from; read at the first publication."""
        self._read_earlier = False
        self._rows: tuple[Event, ...] = ()
        """Events of the newest report's rows."""
        self._troubles: tuple[Event, ...] = ()
        """What the newest status shows to be wrong, or over."""
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    @property
    def entries(self) -> tuple[Event, ...]:
        """What the newest account has to be put on record. The caller does that."""
        return (*self._rows, *self._troubles)

    def offer(self, account: Account) -> None:
        with self._wake:
            self._offered = account
            self._offers += 1
            self._wake.notify_all()

    def settle(self, timeout: float = 5.0) -> bool:
        """Wait until what was offered last is published, for at most `timeout` seconds.

        Return whether it is: the store may not answer.
        """
        with self._wake:
            return self._wake.wait_for(lambda: self._published == self._offers, timeout)

    def finish(self, timeout: float = 5.0) -> None:
        """Publish what was offered last, waiting for at most `timeout` seconds, and stop."""
        with self._wake:
            self._finishing = True
            self._wake.notify_all()
        self._thread.join(timeout)

    def close(self) -> None:
        """Stop without a last publication, because another controller may lead.

        A write under way goes on.
        """
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _ends(self) -> bool:
        return self._closed or self._finishing

    def _run(self) -> None:
        account: Account | None = None
        behind = False
        while True:
            with self._wake:
                wait = EVERY if behind else HEARTBEAT
                self._wake.wait_for(lambda: self._offered or self._ends(), timeout=wait)
                if self._closed:
                    return
                account, self._offered = self._offered or account, None
                last, offers = self._finishing, self._offers
            pause = EVERY
            if account is not None:
                behind, pause = self._attempt(account, last=last)
            if not behind:
                with self._wake:
                    self._published = offers
                    self._wake.notify_all()
            if last:
                return
            with self._wake:  # what is offered meanwhile waits, too
                self._wake.wait_for(self._ends, timeout=pause)

    def _attempt(self, account: Account, *, last: bool) -> tuple[bool, float]:
        """Return whether something is left to write, and the seconds until the next attempt."""
        try:
            behind = not self._publish(account, last=last)
        except Exception as error:
            self._complain(told(error))
            self._backoff = self._backoff.failed()
            return True, self._backoff.pause(self._draw)
        self._backoff = self._backoff.succeeded()
        return behind, EVERY

    def _publish(self, account: Account, *, last: bool) -> bool:
        records, now, earlier = account.records, self._clock(), self._region_before()
        before = () if earlier is None else earlier.events
        ended = records.job is not None and records.job.state in ENDED
        made: dict[str, Callable[[], bytes]] = {
            bucket.EVENTS: lambda: b"\n".join(
                msgspec.json.encode(event) for event in (*before, *records.events)
            ),
            bucket.CURVE: lambda: msgspec.json.encode(records.points),
            bucket.MEASURED: lambda: msgspec.json.encode(records.measured),
            bucket.USAGE: lambda: msgspec.json.encode(list(account.bill.values())),
        }
        if ended or records.round is not None:
            made[bucket.REPORT] = lambda: msgspec.json.encode(self._report(account, now))
        written = [self._put(name, make, force=ended or last) for name, make in made.items()]
        return all([*written, self._put_status(account, now, force=ended or last)])

    def _put(self, name: str, make: Callable[[], bytes], *, force: bool) -> bool:
        """Write the object if it changed. Returns False if it is not due yet, without `force`."""
        if not force and steady() < self._not_before.get(name, 0.0):
            return False
        data = make()
        if self._written.get(name) != data and self._may_write():
            self._objects.put(name, data)
            self._written[name] = data
            pause = RARELY.get(name, EVERY) + len(data) / BYTES_PER_SECOND
            self._not_before[name] = steady() + pause
        return True

    def _report(self, account: Account, now: float) -> Report:
        report = _report(account, now)
        self._rows = tuple(entries(report, now))
        if (earlier := self._region_before()) is not None:
            report = joined(earlier, report, account.records.points)
        self._made = report
        return report

    def _region_before(self) -> Earlier | None:
        if not self._read_earlier:
            self._earlier = self._objects.earlier()
            self._read_earlier = True
        return self._earlier

    def _may_write(self) -> bool:
        """Whether this controller still leads, as far as this thread knows.

        In a process that was suspended, this thread may run before the one that gives up the
        leadership.
        """
        return not self._closed and self._alive()

    def _put_status(self, account: Account, now: float, *, force: bool) -> bool:
        """Write the status. Returns False if only progress has changed, which is not due yet."""
        cluster, leads = self._objects.cluster, self._etcd_leader()
        made = status(cluster, account, leads, now)
        self._troubles = tuple(troubles.entries(made, account.records.events, now))
        self._shows(PublishedFacts(cluster, made, self._made, account.records.events, account.spec))
        before, age = self._status, now - self._status_at
        if before is not None and age < HEARTBEAT and _same(made, before):
            return True
        early = age < PROGRESS_EVERY and not force
        if before is not None and early and _standing(made) == _standing(before):
            return False
        if self._may_write():
            self._objects.put(bucket.STATUS, msgspec.json.encode(made))
            self._status, self._status_at = made, now
        return True


def _same(one: Status, other: Status) -> bool:
    """Whether two statuses say the same.

    Messages about other clusters' instances do not count, and what is spent grows by itself.
    """
    return replace(one, at=other.at, messages=other.messages, usd=other.usd) == other


def _standing(status: Status) -> Status:
    """Return the status without the training's progress."""
    return replace(
        replace(status, at=0.0, step=0, loss=None, upload=None, messages={}, replica=0, usd=0.0),
        step_time=0.0,
        samples_per_second=0.0,
        pace=0.0,
        began_at=0.0,
        stepped_at=0.0,
        logged={},
        nodes=tuple(replace(node, gpu=None) for node in status.nodes),
        usual_loss=None if status.usual_loss is None else 0.0,
    )


def _report(account: Account, now: float) -> Report:
    """Return the report. That of a running job is made as if it ended now."""
    records = account.records
    step = records.points[-1].step if records.points else 0
    ended = records.job is not None and records.job.state in ENDED
    return ledger.report(
        records.history,
        records.round,
        records.job if records.job is not None and ended else Job("running", now, final_step=step),
        records.events,
        records.points,
        tuple(account.bill.values()),
        now,
        account.prices_of,
    )
