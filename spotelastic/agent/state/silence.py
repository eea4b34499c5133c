"""Tells how long a node's workers have executed no step, and what to report of that (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints.types import WorkerStep

QUIET_AFTER = 60.0
"""Seconds without a step, or three usual steps if longer, until the first report. The time to
the next report doubles.
"""
LOOK_EVERY = 15.0


@dataclass(frozen=True, slots=True)
class Silence:
    looked_at: float = 0.0
    steps: tuple[int, ...] = ()
    since: float = 0.0
    """When a new step was last found, or none was expected; 0: none was found so far."""
    usual: float = 0.0
    """Usual seconds per step; 0: not measured."""
    told: int = 0
    asked_at: float = 0.0
    """When the workers were asked where they stand, for the next report."""
    line: str = ""
    """The last report, as long as it holds."""

    def due(self, started_at: float) -> float:
        """Return when the next report is due."""
        return (self.since or started_at) + max(QUIET_AFTER, 3 * self.usual) * 2.0**self.told


def listened(silence: Silence, workers: Sequence[WorkerStep], now: float) -> Silence:
    """Return the silence after a look at the workers' pages.

    Workers that wait on purpose count as active.
    """
    steps = tuple(worker.step for worker in workers)
    usual = max((worker.step_time for worker in workers), default=0.0)
    first = not silence.looked_at and not any(steps)
    if any(worker.waiting for worker in workers) or (steps != silence.steps and not first):
        return Silence(now, steps, since=now, usual=usual)
    return replace(silence, looked_at=now, steps=steps, usual=usual)
