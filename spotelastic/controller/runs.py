"""Rounds that executed steps, and what lies between them: what the ledger's rows are read from.

Pure. Every round has a run, as far as records, published steps and later rounds tell of it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from spotelastic.model.job import Job
from spotelastic.model.progress import Point
from spotelastic.model.round import Resume, Round, RoundRecord


@dataclass(frozen=True, slots=True)
class Run:
    """A round with the steps it executed; `last` equals the resume step if it executed none."""

    round: Round
    first_at: float
    last: int
    last_at: float

    @property
    def start(self) -> int:
        return self.round.resume.step

    @property
    def steps(self) -> int:
        return max(0, self.last - self.start)


@dataclass(frozen=True, slots=True)
class Transition:
    """From one run to the next. `rounds` are those proposed meanwhile, the next run's included."""

    before: Run
    rounds: tuple[Round, ...]
    after: Run | None
    """None while training has not resumed."""

    @property
    def resume(self) -> Resume | None:
        """What the last round that started resumed from; None while none has started."""
        started = [round.resume for round in self.rounds if round.phase == "started"]
        return started[-1] if started else None


def runs_of(
    history: Sequence[RoundRecord], current: Round | None, job: Job, points: Sequence[Point]
) -> list[Run]:
    """Every round in order, the current one included; gaps in the records filled from the steps."""
    records = sorted(history, key=lambda record: record.round.number)
    runs = []
    for record in records:
        seen = _run_from_points(record.round, points, record.ended_at)
        runs.append(
            Run(
                record.round,
                record.first_step_at or seen.first_at,
                max(record.last_step, seen.last),
                record.last_step_at or seen.last_at,
            )
        )
    if current is not None and all(current.incarnation != run.round.incarnation for run in runs):
        run = _run_from_points(current, points, None)
        if run.first_at and job.state == "succeeded" and job.final_step > run.last:
            # The last second before the end may not have been published any more.
            run = Run(current, run.first_at, job.final_step, max(run.last_at, job.at))
        runs.append(run)
    return [_with_what_was_resumed(run, runs) for run in runs]


def _with_what_was_resumed(run: Run, runs: Iterable[Run]) -> Run:
    """A later round went on from a step of this one: it was executed, whoever could tell of it."""
    later = [each.round for each in runs if _goes_on_from(each.round.resume, run)]
    furthest = max(later, key=lambda round: round.resume.step, default=None)
    if furthest is None:
        return run
    first_at, last_at = run.first_at or run.round.started_at, run.last_at or furthest.proposed_at
    return Run(run.round, first_at, furthest.resume.step, last_at)


def _goes_on_from(resume: Resume, run: Run) -> bool:
    mine = run.round.incarnation if resume.kind == "memory" else run.round.epoch
    named = resume.incarnation if resume.kind == "memory" else resume.epoch
    return bool(named) and named == mine and resume.step > run.last


def _run_from_points(round: Round, points: Sequence[Point], ended_at: float | None) -> Run:
    """`points` in the order of their times: a long job has a million, and hundreds of rounds."""
    first = bisect_right(points, round.started_at, key=moment)
    last = len(points) if ended_at is None else bisect_right(points, ended_at, key=moment)
    mine = [point for point in points[first:last] if point.step > round.resume.step]
    if not mine or not round.started_at:
        return Run(round, 0.0, round.resume.step, 0.0)
    return Run(round, mine[0].at, max(point.step for point in mine), mine[-1].at)


def moment(point: Point) -> float:
    return point.at


def transitions(runs: Sequence[Run]) -> Iterable[Transition]:
    before: Run | None = None
    between: list[Round] = []
    for run in runs:
        if before is not None:
            between.append(run.round)
        if run.steps:
            if before is not None:
                yield Transition(before, tuple(between), run)
            before, between = run, []
    if before is not None and between:
        yield Transition(before, tuple(between), None)


def ordinary_step(points: Sequence[Point], runs: Sequence[Run]) -> float:
    """Median seconds from one step to the next, so that a pause is not charged for its step."""
    gaps = [b.at - a.at for a, b in pairwise(points) if b.step == a.step + 1]
    if gaps:
        return median(gaps)
    means = [(run.last_at - run.first_at) / (run.steps - 1) for run in runs if run.steps > 1]
    return median(means) if means else 0.0
