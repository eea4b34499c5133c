"""Charts in Weights & Biases: one run there for a run here, however often it is resumed.

from spotelastic.integrations.wandb import WandbTracker

with WandbTracker(checkpoint, project="gpt") as tracker:
    tracker.log({"loss": loss}, step.number)
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from spotelastic.integrations.libraries import require
from spotelastic.integrations.tracking import Tracker
from spotelastic.training.checkpointer import Checkpointer

require("wandb")

import wandb  # noqa: E402


class WandbTracker(Tracker):
    """Logs to the run whose id is the run's id. `options` are those of `wandb.init`.

    W&B tells a process that resumes a run which step comes next. Offline it cannot, it writes what
    is logged seconds later, and each process gets a folder of its own. So numbers and texts are
    kept in a file beside these folders, and each new folder begins with them: the newest one has
    the whole run.
    """

    def __init__(self, checkpoint: Checkpointer, **options: Any) -> None:
        super().__init__(checkpoint)
        self._options = options
        self.run: Any = None
        """W&B's own run, for configuration and artifacts; None where nothing is logged."""
        self._kept: IO[str] | None = None

    def begin(self, step: int) -> int:
        """Resume the run, or begin it, and find its last step."""
        self.run = wandb.init(**{"id": self.run_id, "resume": "allow", **self._options})
        if not self.run.offline:
            return int(self.run.starting_step) - 1
        file = Path(self.run.dir).parents[1] / f"history-{self.run.id}.jsonl"
        before = _history(file)
        for earlier, values in before:
            self.run.log(values, step=earlier)
        new = file.with_suffix(".new")
        self._kept = new.open("w")
        self._keep(*before)
        new.replace(file)
        return before[-1][0] if before else 0

    def write(self, values: Mapping[str, Any], step: int) -> None:
        """Log the values."""
        self.run.log(dict(values), step=step)
        plain = {
            name: value for name, value in values.items() if isinstance(value, int | float | str)
        }
        self._keep((step, plain))

    def _keep(self, *steps: tuple[int, dict[str, Any]]) -> None:
        if self._kept is not None:
            self._kept.writelines(f"{json.dumps(step)}\n" for step in steps)
            self._kept.flush()

    def end(self) -> None:
        """Send what is left, and end the run. The next process resumes it."""
        run, self.run, kept, self._kept = self.run, None, self._kept, None
        if kept is not None:
            kept.close()
        if run is not None:
            run.finish()


def _history(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return what earlier processes have logged. A line that was cut off by a crash is left out."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            step, values = json.loads(line)
        except ValueError:
            continue
        found.append((step, values))
    return found
