"""The workers of one round in virtual time: which step they are at, what they have sealed.

Steps take the same time each while the intervals are the same, so that no step is an event of its
own.
"""

import math

from spotelastic_checkpoints.types import Schedule

from spotelastic.model.round import Round
from spotelastic.replay.outcome import RunSpan
from spotelastic.replay.scenario import Scenario


class Training:
    """Of a round that has started; `begins` is when its first step begins."""

    def __init__(self, round_: Round, scenario: Scenario, begins: float) -> None:
        self.round = round_
        self.begins = begins
        self.schedule = round_.schedule
        self._scenario = scenario
        self._stopped_at = math.inf
        self._origin, self._base = begins, round_.resume.step
        self.held_at = 0
        """The step that all wait at; 0: none."""
        self._agreed = round_.resume.step
        """The newest that is sealed whatever the intervals are."""

    @property
    def mean_step(self) -> float:
        """Seconds, with its part of a snapshot."""
        return self._scenario.mean_step(self.schedule)

    def step(self, now: float) -> int:
        """The newest that was executed."""
        elapsed = min(now, self._stopped_at) - self._origin
        step = self._base + max(0, math.floor(elapsed / self.mean_step + 1e-9))
        return min(step, self.held_at) if self.held_at else step

    def executed_at(self, step: int) -> float:
        return self._origin + (step - self._base) * self.mean_step

    def hold(self, step: int) -> float:
        """All wait once they have executed and sealed that step; returns when that is."""
        self.held_at = step
        return max(self.executed_at(step), self.begins) + self._scenario.copied_within

    def release(self, now: float, schedule: Schedule | None = None) -> None:
        """They go on, if they waited; if all did, perhaps with other intervals."""
        reached = self.step(now)
        if reached == self.held_at:
            self._origin, self._base = now, reached
            self._agreed = reached
            self.schedule = schedule or self.schedule
        self.held_at = 0

    def stop(self, now: float) -> None:
        self._stopped_at = min(self._stopped_at, now)

    @property
    def stopped(self) -> bool:
        return self._stopped_at < math.inf

    def sealed(self, now: float) -> int:
        """The newest step that is in memory; the one that it resumed from at first."""
        step = self.step(now)
        if step == self.held_at:
            return step
        return max(step - step % self.schedule.snapshot_every, self._agreed)

    def stretch(self, now: float) -> RunSpan:
        last = self.step(now)
        end = self.executed_at(last)
        first = self.round.resume.step
        begin = min(self.begins, end)
        return RunSpan(begin, max(begin, end), len(self.round.members), first, last)
