"""Simulates the workers of one round in virtual time: their step, and what they have sealed.

Each step takes the same time while the intervals stay the same, so that steps need no events.
"""

import math

from spotelastic_checkpoints.types import Schedule

from spotelastic.model.round import Round
from spotelastic.replay.outcome import RunSpan
from spotelastic.replay.scenario import Scenario


class Training:
    """The workers of a round that has started."""

    def __init__(self, round_: Round, scenario: Scenario, begins: float) -> None:
        """Start the workers. `begins` is when their first step begins (s)."""
        self.round = round_
        self.begins = begins
        self.schedule = round_.schedule
        self._scenario = scenario
        self._stopped_at = math.inf
        self._origin, self._base = begins, round_.resume.step
        self.held_at = 0
        """The step at which all workers wait; 0 for none."""
        self._agreed = round_.resume.step
        """The newest step that is sealed whatever the intervals are."""

    @property
    def mean_step(self) -> float:
        """Seconds of a step with its share of a snapshot."""
        return self._scenario.mean_step(self.schedule)

    def step(self, now: float) -> int:
        """Return the newest step that was executed."""
        elapsed = min(now, self._stopped_at) - self._origin
        step = self._base + max(0, math.floor(elapsed / self.mean_step + 1e-9))
        return min(step, self.held_at) if self.held_at else step

    def executed_at(self, step: int) -> float:
        """Return when this step is executed."""
        return self._origin + (step - self._base) * self.mean_step

    def hold(self, step: int) -> float:
        """Make all workers seal this step and wait. Returns when they have."""
        self.held_at = step
        return max(self.executed_at(step), self.begins) + self._scenario.copied_within

    def release(self, now: float, schedule: Schedule | None = None) -> None:
        """Let the workers go on. If all have reached the step, they take the new schedule."""
        reached = self.step(now)
        if reached == self.held_at:
            self._origin, self._base = now, reached
            self._agreed = reached
            self.schedule = schedule or self.schedule
        self.held_at = 0

    def stop(self, now: float) -> None:
        """Stop the workers where they are."""
        self._stopped_at = min(self._stopped_at, now)

    @property
    def stopped(self) -> bool:
        """Whether the workers were stopped."""
        return self._stopped_at < math.inf

    def sealed(self, now: float) -> int:
        """Return the newest step that is in memory, or else the one that they resumed from."""
        step = self.step(now)
        if step == self.held_at:
            return step
        return max(step - step % self.schedule.snapshot_every, self._agreed)

    def stretch(self, now: float) -> RunSpan:
        """Return the time in which steps were executed."""
        last = self.step(now)
        end = self.executed_at(last)
        first = self.round.resume.step
        begin = min(self.begins, end)
        return RunSpan(begin, max(begin, end), len(self.round.members), first, last)
