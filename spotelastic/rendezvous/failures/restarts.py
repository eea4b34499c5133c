"""Decides how soon a failing script is restarted, and when the job gives up (pure).

A first failure restarts at once, as does any failure after a new save or a while of training.
Failures that follow one another at once would burn the restart budget in seconds. So the pause
before each grows from 1 s to `LONGEST`. The same failure `CRASH_LOOP` times in a row, word by word,
ends the job whatever budget is left. That comes after a minute of pauses; an outage would have
passed by then, or would show another message each time.

A syntax error, or a wrong call of this library, cannot pass: before the first step of the script it
ends the job at once. A failed import may be a file system's hiccup on one of several nodes, and is
tried once more there. So is any other exception: what is raised again at the same place, before a
first step, ends the job, unless it tells of a connection or of a device.
"""

import re
from dataclasses import replace

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.model.job import Failure
from spotelastic.model.round import Streak

FAILURES = ("worker", "stall", "store")
"""Causes that come back by themselves if nothing is done about them."""
AT_ONCE = 10.0
"""Seconds after which a round that fails after a step counts as a while of training, even if it
saved nothing.
"""
STARTS_WITHIN = 120.0
"""Seconds in which a script that reports no steps imports what it needs, and begins to train."""
LONGEST = 30.0
CRASH_LOOP = 8
MISTAKES = ("SyntaxError", "IndentationError", "TabError", "NameError", "UsageError")
"""Exceptions by name. The last is our own, e.g. for the checkpoint of another model."""
FINAL = "RehearsalDiffers"
"""Name of the exception that would be raised again at each start, whatever was trained before."""
IMPORTS = ("ImportError", "ModuleNotFoundError")
_KEPT = 200
"""Number of characters of a message by which failures are told apart."""
_RAISED = re.compile(r"ended by SIGABRT|(?!SystemExit|KeyboardInterrupt)[A-Za-z_]\w*:")
_MAY_PASS = re.compile(
    r"connect|timeout|timed ?out|unavailable|temporar|try again|throttl|http|network|stale|busy"
    r"|no space|by peer|nccl|gloo|cuda error|cudnn|cublas|input/output",
    re.I,
)
"""What a message says of something that may be otherwise the next time."""
_VARIES = re.compile(r"\b\d[\d.]*(?= ?([KMGT]i?B|bytes)\b)|\b(process|pid) \d+", re.I)
"""Numbers that differ each time although the failure is the same: memory that is in use."""
_PLACE = re.compile(r'^  File "(.*", line \d+)', re.M)


def is_final(failure: Failure) -> bool:
    """Whether a failure ends the job also after steps."""
    return failure.message.partition(":")[0] == FINAL


def cannot_pass(failure: Failure, streak: Streak, nodes: int) -> bool:
    """Whether a failure before any step, the last one of `streak`, would recur at each start."""
    kind = failure.message.partition(":")[0]
    if kind in IMPORTS:
        return nodes == 1 or streak.alike > 1
    if kind in MISTAKES:
        return True
    raised = _RAISED.match(failure.message) and not _MAY_PASS.search(failure.message)
    return streak.alike > 1 and bool(raised)


def after(streak: Streak, failure: Failure | None, lived: float) -> Streak:
    """Return the streak after a failure of a round that had trained for `lived` seconds.

    `failure` is None if so far only those are heard of that have lost the failed one as a peer.
    """
    if lived >= AT_ONCE:
        return Streak()
    further = replace(streak, failures=streak.failures + 1)
    return further if failure is None else learnt(further, failure)


def learnt(streak: Streak, failure: Failure) -> Streak:
    """Return a streak once its last failure is known."""
    if not failure.exit_code or not streak.failures:
        return replace(streak, alike=0, failure="")
    places = _PLACE.findall(failure.traceback)
    said = _VARIES.sub("", failure.message[:_KEPT])
    what = " ".join((str(failure.exit_code), said, *places[-1:]))
    alike = streak.alike if what == streak.failure else 0
    return replace(streak, alike=alike + 1, failure=what)


def unpaused(streak: Streak) -> Streak:
    """Return the streak where other nodes are there now, which may help: the next start is at once.

    How often the same failure came is still known, because only a new step ends that.
    """
    return replace(streak, failures=min(1, streak.failures))


def pause(streak: Streak) -> float:
    """Return the seconds until the next start."""
    return Backoff(1.0, LONGEST, failures=streak.failures - 1).bound


def loops(streak: Streak) -> bool:
    """Whether a restart is pointless."""
    return streak.alike >= CRASH_LOOP
