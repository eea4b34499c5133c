"""What a worker that failed or stalled has left behind."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerTrouble:
    """What a worker left behind that failed or stalled."""

    message: str
    traceback: str
    log: str
    """Path of what it wrote to stderr."""
