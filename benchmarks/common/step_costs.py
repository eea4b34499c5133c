"""Measures what a step costs in place, beside one of the loop that has no step vote.

Both jobs are there all the time, and take turns of a second or two: what else the machine does
meets both alike.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from common.agents import Job

STARTS = 0.2
"""Seconds of a turn that do not count: ranks begin it one after the other."""
ENDS = 0.1
"""Seconds after a turn, until the last rank has seen that it is over."""

OpensAlone = Callable[[Path, str], AbstractContextManager[Job]]
"""Opens the job of a loop in a folder. It trains while the folder's file `turn` holds a pause."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of a step, in seconds."""

    sought: float
    without: float
    with_vote: float
    percent: float
    """How much longer the step with the vote is: the median of all pairs of turns."""


def step_costs(
    opens: OpensAlone, folder: Path, nodes: int, lengths: list[float], turns: int, seconds: float
) -> list[Cost]:
    """Return the cost for each length of a step."""
    jobs = {}
    with contextlib.ExitStack() as stack:
        for loop in ("restore", "steps"):
            job = jobs[loop] = stack.enter_context(opens(folder / loop, loop))
            _set(job, 0.02)
            for _ in range(nodes):
                job.add()
            job.settle(10)
            _set(job, None)
        bare = _median(jobs["restore"], 0, seconds)
        return [_cost(jobs, length, max(0.0, length - bare), turns, seconds) for length in lengths]


def _cost(jobs: dict[str, Job], sought: float, pause: float, turns: int, seconds: float) -> Cost:
    medians: dict[str, list[float]] = {loop: [] for loop in jobs}
    for turn in range(turns):
        for loop in sorted(jobs, reverse=turn % 2 == 1):
            medians[loop].append(_median(jobs[loop], pause, seconds))
    pairs = zip(medians["restore"], medians["steps"], strict=True)
    return Cost(
        sought,
        statistics.median(medians["restore"]),
        statistics.median(medians["steps"]),
        100 * statistics.median(new / old - 1 for old, new in pairs),
    )


def _median(job: Job, pause: float, seconds: float) -> float:
    """Let the job train for so long, and return the median of a step, on all nodes."""
    begun = time.monotonic() + STARTS
    _set(job, pause)
    time.sleep(STARTS + seconds)
    ended = time.monotonic()
    _set(job, None)
    time.sleep(ENDS)
    steps = [
        later.at - line.at
        for node in job.agents
        for line, later in itertools.pairwise(job.lines(node))
        if begun <= line.at and later.at <= ended
    ]
    return statistics.median(steps)


def _set(job: Job, pause: float | None) -> None:
    new = job.folder / "turn.new"
    new.write_text("" if pause is None else str(pause))
    new.rename(job.folder / "turn")
