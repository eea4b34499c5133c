"""What all experiment trackers have in common: one rank logs, under the run's id, each step once.

A run that goes back to a save makes some steps again. Which of them a tracker has is known to the
tracker alone: what a lost node had not sent yet is missing there. So it is asked when logging
begins, and by every process that comes to log.
"""

import os
from collections.abc import Mapping
from typing import Any, Self

import torch.distributed as dist

from spotelastic.training.checkpointer import Checkpointer


class Tracker:
    """Logs values of steps to a tracker, whose calls are `begin`, `write` and `end`.

    All ranks call `log`, and rank 0 alone logs. Which process that is may change while it runs.
    """

    def __init__(self, checkpoint: Checkpointer) -> None:
        self._checkpoint = checkpoint
        self._logs = False
        self.logged = 0
        """The last step that the tracker has; 0 where this process does not log."""

    @property
    def run_id(self) -> str:
        """The id of the run, the same after each restart."""
        return self._checkpoint.run_id

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Log the values of a finished step, unless the tracker has them."""
        if not _is_first_rank():
            self.close()  # another process logs now
            return
        if not self._logs:
            self.logged, self._logs = self.begin(step), True
        if step > self.logged or self.goes_back(step):
            self.write(values, step)
            self.logged = step

    def begin(self, step: int) -> int:
        """Begin to log, with this step. Return the last step that the tracker has of the run."""
        raise NotImplementedError

    def goes_back(self, step: int) -> bool:
        """Make the tracker forget this step and all later ones, where it can. Return whether."""
        return False

    def write(self, values: Mapping[str, Any], step: int) -> None:
        """Log the values."""
        raise NotImplementedError

    def end(self) -> None:
        """End what `begin` has begun."""

    def close(self) -> None:
        """Write what is left. A later `log` begins again."""
        if self._logs:
            self._logs, self.logged = False, 0
            self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_first_rank() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"
