"""Curves in TensorBoard: one folder for a run, however often its processes are replaced.

from spotelastic.integrations.tensorboard import TensorBoardTracker

with TensorBoardTracker(checkpoint, "s3://bucket/curves") as tracker:
    tracker.log({"loss": loss}, step.number)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotelastic.integrations.libraries import require
from spotelastic.integrations.tracking import Tracker
from spotelastic.training.checkpointer import Checkpointer

require("tensorboard")

from torch.utils.tensorboard import SummaryWriter  # noqa: E402


class TensorBoardTracker(Tracker):
    """Writes scalars below `folder`, into a folder named by the run's id.

    TensorBoard forgets what it has of steps that are made again. `options` are those of
    `SummaryWriter`.
    """

    def __init__(
        self, checkpoint: Checkpointer, folder: str | Path = "tensorboard", **options: Any
    ) -> None:
        super().__init__(checkpoint)
        self.folder, self._options = str(folder), options
        self.writer: SummaryWriter | None = None
        """torch's writer, for images and whatever else it takes; None where nothing is logged."""

    def begin(self, step: int) -> int:
        """Open a file whose beginning purges this step and all later ones from earlier files."""
        self.writer = SummaryWriter(
            f"{self.folder.rstrip('/')}/{self.run_id}", purge_step=step, **self._options
        )
        return step - 1

    def goes_back(self, step: int) -> bool:
        """Go on in another file, which purges the steps that come again."""
        self.end()
        self.begin(step)
        return True

    def write(self, values: Mapping[str, Any], step: int) -> None:
        """Write each value as a scalar."""
        assert self.writer is not None
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def end(self) -> None:
        """Close the file."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
