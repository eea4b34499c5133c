"""Back-off for calls to AWS: it grows on repeated failure, but warned nodes are retried sooner.

Times are seconds of a clock that is passed in.
"""

from collections.abc import Iterable

from spotelastic_checkpoints.backoff import Backoff, Draw

JITTER = (0.5, 1.0)
"""Controllers that AWS has turned away together do not ask again together."""
LOOKING = 60.0
"""Seconds between two looks at most while they fail: one after the other, each pause is longer."""
PRESSING = 2.0
"""Seconds between two of those while somebody waits for what comes of it."""
ANSWERING = 5.0
"""Seconds between two tries at most to replace a node that is warned: it has two minutes."""


class AwsThrottle:
    """From a look at AWS, or an action, that has failed until the next."""

    def __init__(self, first: float, idle: float, draw: Draw) -> None:
        """Seconds: the first pause, and that of a cluster at rest: an action that is never allowed
        keeps nobody waiting for longer."""
        self._draw = draw
        self._looks = Backoff(first, LOOKING, jitter=JITTER)
        self._acts = Backoff(first, idle, jitter=JITTER)
        self._failed_at = self._resume_at = 0.0
        self._blind = False
        """A look has failed, and not what was done after one."""

    def look_failed(self, now: float) -> None:
        self._looks = self._looks.failed()
        self._begin(now, self._looks, blind=True)

    def looked(self) -> None:
        self._looks = self._looks.succeeded()
        self._blind = False

    def action_failed(self, now: float) -> None:
        self._acts = self._acts.failed()
        self._begin(now, self._acts, blind=False)

    def acted(self) -> None:
        self._acts = self._acts.succeeded()

    def _begin(self, now: float, backoff: Backoff, *, blind: bool) -> None:
        self._failed_at, self._blind = now, blind
        self._resume_at = backoff.next_at(now, self._draw)

    def until(self, *, news: bool, pressing: bool) -> float:
        """After a failed look no news cut it short, because etcd changes every second; where only
        an action has failed, they may be what lets it succeed."""
        if news and not self._blind:
            return float("-inf")
        if pressing:
            return min(self._resume_at, self._failed_at + PRESSING)
        return self._resume_at


class WarningRetry:
    """Which warned nodes are to be replaced now. One that is new never waits for those for which it
    has failed."""

    def __init__(self, first: float, draw: Draw) -> None:
        self._draw = draw
        self._backoff = Backoff(first, ANSWERING, jitter=JITTER)
        self._tried: frozenset[str] = frozenset()
        """This turn."""
        self._missed: frozenset[str] = frozenset()
        self._again_at = 0.0

    def turn(self) -> None:
        self._tried = frozenset()

    def due(self, warned: frozenset[str], now: float) -> frozenset[str]:
        self._missed &= warned
        waiting = self._missed if now < self._again_at else frozenset[str]()
        return warned - self._tried - waiting

    def tried(self, nodes: frozenset[str], missed: Iterable[str], now: float) -> None:
        """`missed`: those of them that could not be replaced."""
        missed = frozenset(missed)
        self._tried |= nodes
        self._missed = (self._missed - nodes) | missed
        if missed:
            self._backoff = self._backoff.failed()
            self._again_at = self._backoff.next_at(now, self._draw)
        elif not self._missed:
            self._backoff = self._backoff.succeeded()

    @property
    def again_at(self) -> float:
        return self._again_at if self._missed else float("inf")
