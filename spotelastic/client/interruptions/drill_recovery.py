"""Waits until a job has got over the interruptions of a drill, and tells what each one cost."""

import threading
from collections.abc import Callable, Sequence

from spotelastic.client.interruptions.drill_plan import Caused
from spotelastic.client.published import status_of
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import steady
from spotelastic.errors import JobFailed
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Interruption, Report, Status

LOOK_EVERY = 1.0
TELL_EVERY = 15.0
PUBLISHED_WITHIN = 20.0
"""Seconds within which a report has the steps of a node: it is published every five."""
WITHIN = 900.0
"""Seconds to wait. Two minutes of notice and the boot of a replacement fit in several times."""

Say = Callable[[str], object]


def row_of(caused: Caused, report: Report | None, waited: float) -> Interruption | None:
    """Return the report's row for a node that was taken away, once training has gone on.

    A node whose steps are not published yet has a row as if it had never trained. So such a row
    counts only after a while.
    """
    for row in report.interruptions if report is not None else ():
        is_this = row.node == caused.node and row.kind not in (
            InterruptionKind.WORKER,
            InterruptionKind.ETCD,
        )
        trained = row.first_step_at is not None
        if is_this and row.pause_s is not None and (trained or waited >= PUBLISHED_WITHIN):
            return row
    return None


def outcome(row: Interruption) -> str:
    """Return what an interruption cost, for people."""
    if row.saved_step is None:
        return f"{row.node} is gone: it had not started training, so training did not pause"
    return (
        f"{row.node} is gone: training paused {row.pause_s:.2f} s and continues from step "
        f"{row.saved_step}, {row.steps_lost or 0} steps repeated"
    )


def awaited(caused: Sequence[Caused]) -> tuple[Caused, ...]:
    """Return the interruptions that a job has to get over: a recommendation takes no node away."""
    return tuple(each for each in caused if each.kind is not InterruptionKind.REBALANCE)


def wait(cluster: ShownCluster, caused: Sequence[Caused], say: Say) -> None:
    """Wait until training has gone on after each interruption, and tell what it cost.

    Raises `JobFailed` if the job fails instead, or does not train again in time.
    """
    open_ = awaited(caused)
    if not open_:
        return
    say(f"waiting until {cluster.name} trains again; Ctrl-C ends the wait, not the job")
    began, told = steady(), 0.0
    while True:
        status, report = status_of(cluster), cluster.objects.report()
        elapsed = steady() - began
        rows = [(each, row_of(each, report, elapsed)) for each in open_]
        for row in (row for _, row in rows if row is not None):
            say(outcome(row))
        open_ = tuple(each for each, row in rows if row is None)
        if not open_ or _has_ended(status, say):
            return
        if elapsed >= WITHIN:
            raise JobFailed(
                f"{cluster.name} has not trained again within {WITHIN:g} s: "
                f"`spotelastic status {cluster.name}` says what it waits for"
            )
        if elapsed - told >= TELL_EVERY:
            told = elapsed
            say(f"{elapsed:.0f} s: not yet after {', '.join(each.node for each in open_)}")
        threading.Event().wait(LOOK_EVERY)


def _has_ended(status: Status, say: Say) -> bool:
    """Raise `JobFailed` for an end that is no success."""
    if status.state not in ENDED:
        return False
    if status.state != "succeeded":
        raise JobFailed(f"the job has {status.state} after the interruptions: {status.reason}")
    say("the job has succeeded")
    return True
