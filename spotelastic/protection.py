"""The precedence that a node's unit gives to agent, controller and etcd, and who gives it up.

`infra/boot/spotelastic.service` gives them a higher priority, and lets the kernel end other
processes first where memory runs out. Children inherit both. Must never happen: a worker keeps
them. It would hold up its own agent, or the kernel would end the agent in its place.

Needs Linux and the standard library only.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PROTECTED = "SPOTELASTIC_PROTECTED"
"""Variable by which a process knows that it has the precedence."""
NICE, OOM_SCORE = -10, -900
"""The unit's values, for containers."""
OF_THIS_PROCESS = Path("/proc/self/oom_score_adj")
_GIVE_UP = 'echo 0 2> /dev/null > /proc/self/oom_score_adj; exec nice -n "$0" "$@"'


def give_up(score: Path = OF_THIS_PROCESS) -> None:
    """Give up the precedence, if this process has it. Threads that run already keep theirs.

    `score` is the file by which the kernel chooses whom to end.
    """
    if os.environ.pop(PROTECTED, None) is None:
        return  # what a user has chosen for a process of theirs stays
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) < 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError, ValueError):
        if int(score.read_text()) < 0:
            score.write_text("0")


def without(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> Sequence[str]:
    """Return a command that gives up the precedence and then becomes this one."""
    if PROTECTED not in environ:
        return command
    lower = max(0, -os.getpriority(os.PRIO_PROCESS, 0))
    return ("/bin/sh", "-c", _GIVE_UP, str(lower), *command)
