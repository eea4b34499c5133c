"""What a worker that failed or stalled has left behind."""

import signal
from dataclasses import dataclass


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
