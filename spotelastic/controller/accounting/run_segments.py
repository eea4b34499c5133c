"""Reconstructs which steps each round executed, and the transitions between rounds (pure).

Every round has a run, as far as records, published steps and later rounds tell of it. The ledger
reads its rows from these.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from statistics import median

from spotelastic_checkpoints.types import Resume

from spotelastic.model.job import Job
from spotelastic.model.progress import Point
from spotelastic.model.round import Round, RoundRecord

RECENT = 100
"""Steps before a pause that tell how long an ordinary one takes then."""
STRAYS = 10
"""Most steps of the round before that may seem to lie in a round, because clocks differ a little.
They are its last ones, and at most this far below the step that the round resumes from.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A round with the steps that it executed; `last` equals `start` if it executed none."""

    round: Round
    start: int
    """The step before its first one: the resumed step, unless the run was sent back."""
    last: int
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def steps(self) -> int:
        return max(0, self.last - self.start)

    @property
    def sent_back(self) -> bool:
        """Whether it went on from an earlier commit.

        Its script may have asked for that, or a checkpoint was damaged.
        """
        return self.start < self.round.resume.step

    @property
    def begins(self) -> bool:
        """Whether a new life of the job begins with it.

        Its cause may differ, if a node was lost before it started.
        """
        return not self.round.parent


@dataclass(frozen=True, slots=True)
class Transition:
    """The time from one run to the next.

    `rounds` were proposed meanwhile, the next run's included.
    """

    before: Run
    rounds: tuple[Round, ...]
    after: Run | None
    """The next run; None while training has not resumed, or if the job ended before it did."""
    until: float = float("inf")
    """When the job's next life began. What happened later is unrelated."""

    @property
    def ended(self) -> tuple[Round, ...]:
        """The rounds that ended in it, the last one included if that has made no step."""
        return (self.before.round, *(self.rounds if self.after is None else self.rounds[:-1]))

    @property
    def resume(self) -> Resume | None:
        """What the last started round resumed from; None while none has started."""
        started = [round.resume for round in self.rounds if round.phase == "started"]
        return started[-1] if started else None

    @property
    def saved_step(self) -> int | None:
        """The step that training resumed from, or will resume from as far as known."""
        if self.after is not None:
            return self.after.start
        return None if self.resume is None else self.resume.step


def runs_of(
    history: Sequence[RoundRecord], current: Round | None, job: Job, points: Sequence[Point]
) -> list[Run]:
    """Return a run for every round in order, the current one included.

    Gaps in the records are filled from the steps.
    """
    records = sorted(history, key=lambda record: record.round.number)
    runs = [_run_of_record(record, points) for record in records]
    known = {run.round.incarnation for run in runs}
    if current is not None and current.phase != "over" and current.incarnation not in known:
        run = _run_from_points(current, points, None)
        told = _own_step(job.final_step, run)
        if run.first_at and job.state == "succeeded" and told > run.last:
            # The last second before the end may not have been published any more.
            run = replace(run, last=told, last_at=max(run.last_at, job.at))
        runs.append(run)
    return [_with_what_was_resumed(run, runs) for run in runs]


def _run_of_record(record: RoundRecord, points: Sequence[Point]) -> Run:
    seen = _run_from_points(record.round, points, record.ended_at)
    return replace(
        seen,
        last=max(_own_step(record.last_step, seen), seen.last),
        first_at=record.first_step_at or seen.first_at,
        last_at=record.last_step_at or seen.last_at,
    )


def _own_step(told: int, run: Run) -> int:
    """Return the last step reported of a round if it is its own.

    A round without steps of its own reports the step that it resumed from, though it may have been
    sent back.
    """
    return told if told > run.round.resume.step else run.last


def _with_what_was_resumed(run: Run, runs: Iterable[Run]) -> Run:
    """Extend a run to the step that a later round resumed from.

    That step was executed, even if it was not reported.
    """
    later = [each.round for each in runs if _goes_on_from(each.round.resume, run)]
    furthest = max(later, key=lambda round: round.resume.step, default=None)
    if furthest is None:
        return run
    return replace(
        run,
        last=furthest.resume.step,
        first_at=run.first_at or run.round.started_at,
        last_at=run.last_at or furthest.proposed_at,
    )


def _goes_on_from(resume: Resume, run: Run) -> bool:
    mine = run.round.incarnation if resume.kind == "memory" else run.round.epoch
    named = resume.incarnation if resume.kind == "memory" else resume.epoch
    return bool(named) and named == mine and resume.step > run.last


def _run_from_points(round: Round, points: Sequence[Point], ended_at: float | None) -> Run:
    """Return a round's run from its points.

    The points are sorted by time, because a long job has a million of them.
    """
    first = bisect_right(points, round.started_at, key=moment)
    last = len(points) if ended_at is None else bisect_right(points, ended_at, key=moment)
    start, mine = _own_points(round.resume.step, points[first:last])
    if not mine or not round.started_at:
        return Run(round, round.resume.step, round.resume.step)
    return Run(round, start, max(point.step for point in mine), mine[0].at, mine[-1].at)


def _own_points(resumed: int, within: Sequence[Point]) -> tuple[int, Sequence[Point]]:
    """Return the step before a round's own points, and these points."""
    for index, point in enumerate(within[: STRAYS + 1]):
        if point.step < resumed - STRAYS:  # no stray: the round was sent back
            return point.step - 1, within[index:]
    return resumed, [point for point in within if point.step > resumed]


def moment(point: Point) -> float:
    return point.at


def lives(runs: Sequence[Run]) -> list[list[Run]]:
    """Split runs into lives of the job: a restart begins another one."""
    lived: list[list[Run]] = []
    for run in runs:
        if run.begins or not lived:
            lived.append([])
        lived[-1].append(run)
    return lived


def transitions(runs: Sequence[Run]) -> Iterator[Transition]:
    """Yield the transitions within each life of the job; between two lives nothing waited."""
    lived = lives(runs)
    for life, following in zip_longest(lived, lived[1:]):
        until = following[0].round.proposed_at if following else float("inf")
        yield from _transitions_of(life, until)


def _transitions_of(life: Sequence[Run], until: float) -> Iterator[Transition]:
    before: Run | None = None
    between: list[Round] = []
    for run in life:
        if before is not None:
            between.append(run.round)
        if run.steps:
            if before is not None:
                yield Transition(before, tuple(between), run, until)
            before, between = run, []
    if before is not None and between:
        yield Transition(before, tuple(between), None, until)


def ordinary_step(points: Sequence[Point], runs: Sequence[Run]) -> float:
    """Return the median seconds between steps."""
    gaps = _gaps(points)
    if gaps:
        return median(gaps)
    means = [(run.last_at - run.first_at) / (run.steps - 1) for run in runs if run.steps > 1]
    return median(means) if means else 0.0


def step_before(at: float, points: Sequence[Point], otherwise: float) -> float:
    """Return the median seconds of the steps before a time.

    With it, a pause is not charged for an ordinary step, and does not change as the job becomes
    faster or slower. `points` are sorted by time. `otherwise` is what is returned if there were no
    steps then.
    """
    last = bisect_right(points, at, key=moment)
    gaps = _gaps(points[max(0, last - RECENT) : last])
    return median(gaps) if gaps else otherwise


def _gaps(points: Sequence[Point]) -> list[float]:
    return [b.at - a.at for a, b in pairwise(points) if b.step == a.step + 1]
