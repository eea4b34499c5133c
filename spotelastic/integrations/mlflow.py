"""Metrics in MLflow: one run there for a run here, found again by a tag.

from spotelastic.integrations.mlflow import MlflowTracker

with MlflowTracker(checkpoint) as tracker:
    tracker.log({"loss": loss}, step.number)
"""

from collections.abc import Mapping
from typing import Any

from spotelastic.integrations.libraries import require
from spotelastic.integrations.tracking import Tracker
from spotelastic.training.checkpointer import Checkpointer

require("mlflow", "mlflow-skinny")

import mlflow  # noqa: E402

TAG = "spotelastic.run_id"


class MlflowTracker(Tracker):
    """Logs to the run of the current experiment whose tag is the run's id.

    While it logs, that is MLflow's active run. MLflow would keep both values of a step that is
    logged twice, so a step that it has is left out. `options` are those of `mlflow.start_run`.
    """

    def __init__(self, checkpoint: Checkpointer, **options: Any) -> None:
        super().__init__(checkpoint)
        self._options = options

    def begin(self, step: int) -> int:
        """Find the run, or make it, and ask for the last step of its metrics."""
        told = mlflow.search_runs(
            filter_string=f"tags.`{TAG}` = '{self.run_id}'", output_format="list"
        )
        if not told:
            tags = {**self._options.get("tags", {}), TAG: self.run_id}
            mlflow.start_run(**{**self._options, "tags": tags})
            return 0
        run = mlflow.start_run(run_id=told[0].info.run_id, **self._options)
        client, metrics = mlflow.MlflowClient(), run.data.metrics
        return max((_last(client, run.info.run_id, name) for name in metrics), default=0)

    def write(self, values: Mapping[str, Any], step: int) -> None:
        """Log the values as metrics."""
        mlflow.log_metrics({name: float(value) for name, value in values.items()}, step=step)

    def end(self) -> None:
        """End the active run. The next process goes on with it."""
        mlflow.end_run()


def _last(client: Any, run: str, name: str) -> int:
    return max((metric.step for metric in client.get_metric_history(run, name)), default=0)
