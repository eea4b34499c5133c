"""Back-off for calls to the cloud: it grows with failures, but warned nodes are retried sooner.

Both are values, and each change returns another one. Times are seconds of a clock that is passed
in, and `chance` is a random number from 0 to 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spotelastic_checkpoints.backoff import Backoff

JITTER = (0.5, 1.0)
"""Shares of a pause between which it is drawn: those turned away together come apart."""
LOOKING = 60.0
"""Longest pause, in seconds, between looks at the cloud that fail."""
PRESSING = 2.0
"""Longest such pause, in seconds, while a node or a user waits for the outcome."""
ANSWERING = 5.0
"""Longest seconds between attempts to replace a node with a notice: it has two minutes."""


@dataclass(frozen=True, slots=True)
class CloudThrottle:
    """Tells how long to leave the cloud alone after a look, or an action, has failed."""

    looks: Backoff
    acts: Backoff
    failed_at: float = 0.0
    resume_at: float = 0.0
    blind: bool = False
    """Whether a look has failed, rather than an action that followed one."""

    @classmethod
    def first(cls, pause: float, idle: float) -> "CloudThrottle":
        """Return the throttle without a failure.

        `pause` is the first pause and `idle` the longest one after failed actions, in seconds.
        """
        return cls(Backoff(pause, LOOKING, jitter=JITTER), Backoff(pause, idle, jitter=JITTER))

    def look_failed(self, now: float, chance: float) -> "CloudThrottle":
        looks = self.looks.failed()
        again = now + drawn(looks, chance)
        return replace(self, looks=looks, failed_at=now, resume_at=again, blind=True)

    def looked(self) -> "CloudThrottle":
        return replace(self, looks=self.looks.succeeded(), blind=False)

    def action_failed(self, now: float, chance: float) -> "CloudThrottle":
        acts = self.acts.failed()
        again = now + drawn(acts, chance)
        return replace(self, acts=acts, failed_at=now, resume_at=again, blind=False)

    def acted(self) -> "CloudThrottle":
        return replace(self, acts=self.acts.succeeded())

    def until(self, *, news: bool, pressing: bool) -> float:
        """Return until when the cloud is left alone.

        `news` does not shorten the pause after a failed look, because etcd changes every second. It
        does after a failed action, because it may be what lets the action succeed.
        """
        if news and not self.blind:
            return float("-inf")
        if pressing:
            return min(self.resume_at, self.failed_at + PRESSING)
        return self.resume_at


@dataclass(frozen=True, slots=True)
class WarningRetry:
    """Tells which nodes with a notice to replace now.

    A new one never waits for those that could not be replaced.
    """

    backoff: Backoff
    tried: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    failed_until: float = 0.0

    @classmethod
    def first(cls, pause: float) -> "WarningRetry":
        return cls(Backoff(pause, ANSWERING, jitter=JITTER))

    def turn(self) -> "WarningRetry":
        """Return it as another turn begins."""
        return replace(self, tried=frozenset())

    def warned(self, nodes: frozenset[str]) -> "WarningRetry":
        """Return it without the nodes that are no longer under notice."""
        return replace(self, missed=self.missed & nodes)

    def due(self, warned: frozenset[str], now: float) -> frozenset[str]:
        """Return which of the nodes under notice to replace now."""
        waiting = self.missed if now < self.failed_until else frozenset[str]()
        return warned - self.tried - waiting

    def attempted(
        self, nodes: frozenset[str], missed: Iterable[str], now: float, chance: float
    ) -> "WarningRetry":
        """Return it after an attempt to replace `nodes`; `missed` could not be replaced."""
        failed = frozenset(missed)
        after = replace(self, tried=self.tried | nodes, missed=(self.missed - nodes) | failed)
        if failed:
            backoff = self.backoff.failed()
            return replace(after, backoff=backoff, failed_until=now + drawn(backoff, chance))
        if not after.missed:
            return replace(after, backoff=self.backoff.succeeded())
        return after

    @property
    def again_at(self) -> float:
        """When a node is to be tried again."""
        return self.failed_until if self.missed else float("inf")


def drawn(backoff: Backoff, chance: float) -> float:
    """Return the pause, where `chance` says how long it is within its bounds."""
    return backoff.pause(lambda low, high: low + (high - low) * chance)
