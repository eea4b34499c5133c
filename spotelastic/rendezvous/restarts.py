"""Decides how soon a failing script is restarted, and when the job gives up (pure).

A first failure restarts at once, as does any failure after a new save or a while of training.
Failures that follow one another at once would burn the restart budget in seconds. So the pause
before each grows from 1 s to `LONGEST`. The same failure `CRASH_LOOP` times in a row, word by word,
ends the job whatever budget is left. That comes after a minute of pauses; an outage would have
passed by then, or would show another message each time.

A syntax error, or a wrong call of this library, cannot pass: before the first step of a job it ends
the job at once. A failed import may be a file system's hiccup on one of several nodes, and is tried
once more there.
"""

from dataclasses import replace

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.model.job import Failure
from spotelastic.model.round import Streak

FAILURES = ("worker", "stall", "store")
"""Causes that come back by themselves if nothing is done about them."""
AT_ONCE = 10.0
"""Seconds after which a round that fails counts as having trained, even if it saved nothing."""
LONGEST = 30.0
CRASH_LOOP = 8
MISTAKES = ("SyntaxError", "IndentationError", "TabError", "NameError", "UsageError")
"""Exceptions by name. The last is our own, e.g. for the checkpoint of another model."""
IMPORTS = ("ImportError", "ModuleNotFoundError")
_KEPT = 200
"""Number of characters of a message by which failures are told apart."""


def cannot_pass(failure: Failure, streak: Streak, nodes: int) -> bool:
    """Whether a failure before any step, the last one of `streak`, would recur at each start."""
    kind = failure.message.partition(":")[0]
    if kind in IMPORTS:
        return nodes == 1 or streak.alike > 1
    return kind in MISTAKES


def after(streak: Streak, failure: Failure, lived: float) -> Streak:
    """Returns the streak after a failure of a round that had lived for so many seconds."""
    if lived >= AT_ONCE:
        return Streak()
    what = f"{failure.exit_code} {failure.message[:_KEPT]}" if failure.exit_code else ""
    alike = streak.alike if what == streak.failure else 0
    return Streak(streak.failures + 1, alike + 1 if what else 0, what)


def unpaused(streak: Streak) -> Streak:
    """Returns the streak where other nodes are there now, which may help: the next start is at
    once. How often the same failure came is still known, because only a new step ends that.
    """
    return replace(streak, failures=min(1, streak.failures))


def pause(streak: Streak) -> float:
    """Returns the seconds until the next start."""
    return Backoff(1.0, LONGEST, failures=streak.failures - 1).bound


def loops(streak: Streak) -> bool:
    """Whether a restart is pointless."""
    return streak.alike >= CRASH_LOOP
