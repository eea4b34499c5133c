"""Kills a process where the fault tests want it to die: the stages are named in the code.

A stage is named after what has just happened; `tests/support/processes/kill_points.py` lists them.
With `SPOTELASTIC_DIE_AT=<stage>` in its environment a process kills itself there with SIGKILL;
otherwise `reached` does nothing.
"""

import os
import signal
from enum import StrEnum

_DIE_AT = os.environ.get("SPOTELASTIC_DIE_AT", "")


def reached_in(step: StrEnum, moment: str) -> None:
    """Kill this process if the tests asked for it to die at this moment of a step.

    `SPOTELASTIC_DIE_AT` is `<step>-<moment>` then.
    """
    if f"{step}-{moment}" == _DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def reached(stage: str) -> None:
    """Kill this process if the tests asked for it to die at this stage."""
    if stage == _DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)
