"""Continues the report of a job that was moved here from another region (pure).

The bill and the curve go on by themselves: a leader takes them from the bucket, where the move has
put them. Rounds and events of the region before are not in this cluster's etcd.
"""

from collections.abc import Sequence
from dataclasses import replace

from spotelastic.model.counting import HOUR
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Earlier, Interruption, Point, Report


def moved(earlier: Earlier, report: Report, points: Sequence[Point]) -> Interruption:
    """Return the row of the move: its pause, and what it has cost.

    That is the copy, and all that ran here during the pause but the workers.
    """
    after = [point for point in points if point.at > earlier.last_step_at]
    first = min(after, key=lambda point: point.at, default=None)
    pause = None
    if first is not None and earlier.last_step_at:
        pause = round(max(0.0, first.at - earlier.last_step_at), 3)
    usd = None
    if pause is not None:
        usd = round(earlier.copied_usd + report.control_usd_per_hour * pause / HOUR, 6)
    return Interruption(
        kind=InterruptionKind.MOVED,
        node=f"{earlier.region} to {earlier.to}",
        at=earlier.last_step_at,
        saved_step=earlier.step,
        committed=True,
        pause_s=pause,
        steps_lost=max(0, earlier.last_step - earlier.step),
        first_step_at=None if first is None else first.at,
        usd=usd,
        source="store",
    )


def joined(earlier: Earlier, report: Report, points: Sequence[Point]) -> Report:
    """Return the report of the whole job: of the region before, the move, and this region."""
    row, before = moved(earlier, report, points), earlier.report
    rows = () if before is None else before.interruptions
    steps = 0 if before is None else before.job.steps_run
    return replace(
        report,
        job=replace(report.job, steps_run=report.job.steps_run + steps),
        interruptions=(*rows, row, *report.interruptions),
        goodput=_goodput(earlier, report, row, points),
    )


def _goodput(earlier: Earlier, report: Report, row: Interruption, points: Sequence[Point]) -> float:
    """Return the share of useful time since the first step, in either region."""
    if earlier.report is None or row.first_step_at is None:
        return report.goodput if earlier.report is None else earlier.report.goodput
    before = earlier.last_step_at - earlier.first_step_at
    after = max(point.at for point in points) - row.first_step_at
    useful = before * earlier.report.goodput + after * report.goodput
    elapsed = before + (row.pause_s or 0.0) + after
    return round(min(1.0, useful / elapsed), 4) if elapsed > 0 else report.goodput
