"""Back-off for calls to AWS: it grows on repeated failure, but warned nodes are retried sooner.

Times are seconds of a clock that is passed in.
"""

from collections.abc import Iterable

from spotelastic_checkpoints.backoff import Backoff, Draw

JITTER = (0.5, 1.0)
"""Shares of a pause between which it is drawn, so that controllers that AWS has turned away
together do not ask again together.
"""
LOOKING = 60.0
"""Longest pause, in seconds, between looks at AWS that fail."""
PRESSING = 2.0
"""Longest such pause, in seconds, while a node or a user waits for the outcome."""
ANSWERING = 5.0
"""Longest pause, in seconds, between attempts to replace a node that has a notice: it has two
minutes.
"""


class AwsThrottle:
    """Tells how long to leave AWS alone after a look, or an action, has failed."""

    def __init__(self, first: float, idle: float, draw: Draw) -> None:
        """`first` is the first pause and `idle` the longest one after failed actions, both in
        seconds.
        """
        self._draw = draw
        self._looks = Backoff(first, LOOKING, jitter=JITTER)
        self._acts = Backoff(first, idle, jitter=JITTER)
        self._failed_at = self._resume_at = 0.0
        self._blind = False
        """Whether a look has failed, rather than an action that followed one."""

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
        """Returns until when AWS is left alone.

        `news` does not shorten the pause after a failed look, because etcd changes every second. It
        does after a failed action, because it may be what lets the action succeed.
        """
        if news and not self._blind:
            return float("-inf")
        if pressing:
            return min(self._resume_at, self._failed_at + PRESSING)
        return self._resume_at


class WarningRetry:
    """Tells which nodes with a notice to replace now. A new one never waits for those that could
    not be replaced.
    """

    def __init__(self, first: float, draw: Draw) -> None:
        self._draw = draw
        self._backoff = Backoff(first, ANSWERING, jitter=JITTER)
        self._tried: frozenset[str] = frozenset()
        """Nodes that were tried in this turn."""
        self._missed: frozenset[str] = frozenset()
        self._again_at = 0.0

    def turn(self) -> None:
        self._tried = frozenset()

    def due(self, warned: frozenset[str], now: float) -> frozenset[str]:
        self._missed &= warned
        waiting = self._missed if now < self._again_at else frozenset[str]()
        return warned - self._tried - waiting

    def tried(self, nodes: frozenset[str], missed: Iterable[str], now: float) -> None:
        """Records an attempt to replace `nodes`, of which `missed` could not be replaced."""
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
