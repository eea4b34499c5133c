"""What a worker that failed or stalled has left behind."""

import re
import signal
from dataclasses import dataclass

_GLOO = re.compile(
    r"\[[^\]\s]*/gloo/[^\]\s]*:\d+\] (.*?)\.?\s+This is typically caused by .*?GLHF!( \S*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class WorkerTrouble:
    """What a worker left behind that failed or stalled."""

    message: str
    traceback: str
    log: str
    """Path of what it wrote to stderr."""


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def without_advice(message: str) -> str:
    """What failed in a collective, without gloo's place in its source and its advice.

    The advice is to look at the worker that failed first, which is reported anyway.
    """
    return _GLOO.sub(r"\1", message)
