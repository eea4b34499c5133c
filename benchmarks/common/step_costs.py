"""Measures what a job's step costs beside another's: in place beside the loop that has no step
vote, with replicas beside without.

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
"""Opens a job by its name in a folder. It trains while the folder's file `turn` holds a pause."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of a step, in seconds."""

    sought: float
    without: float
    with_it: float
    percent: float
    """How much longer the second job's step is: the median of all pairs of turns."""


def step_costs(
    names: tuple[str, str],
    opens: OpensAlone,
    folder: Path,
    nodes: int,
    lengths: list[float],
    turns: int,
    seconds: float,
) -> list[Cost]:
    """Return the cost of the second job's step beside the first's, for each length of a step."""
    jobs = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            job = jobs[name] = stack.enter_context(opens(folder / name, name))
            _set(job, 0.02)
            for _ in range(nodes):
                job.add()
            job.settle(10)
            _set(job, None)
        bare = _median(jobs[names[0]], 0, seconds)
        return [_cost(jobs, length, max(0.0, length - bare), turns, seconds) for length in lengths]


def _cost(jobs: dict[str, Job], sought: float, pause: float, turns: int, seconds: float) -> Cost:
    medians: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(turns):
        for name in [*jobs][:: -1 if turn % 2 else 1]:
            medians[name].append(_median(jobs[name], pause, seconds))
    without, with_it = medians.values()
    return Cost(
        sought,
        statistics.median(without),
        statistics.median(with_it),
        100 * statistics.median(new / old - 1 for old, new in zip(without, with_it, strict=True)),
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
