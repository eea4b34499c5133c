"""Curves of experiment trackers have each step once, although a killed rank made some twice."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tracked

pytestmark = [pytest.mark.programs, pytest.mark.timeout(600)]

SCRIPT = Path(tracked.__file__)
EACH_ONCE = list(range(1, tracked.STEPS + 1))


def in_tensorboard(folder: Path, run_id: str) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-not-found]
        EventAccumulator,
    )

    events = EventAccumulator(str(folder / "curves" / run_id))
    events.Reload()
    return [event.step for event in events.Scalars("loss")]


def in_mlflow(folder: Path, run_id: str) -> list[int]:
    import mlflow  # type: ignore[import-not-found]

    client = mlflow.MlflowClient(f"file://{folder}/mlruns")
    [run] = client.search_runs(["0"])
    assert run.data.tags["spotelastic.run_id"] == run_id
    return [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]


def train(name: str, folder: Path, *options: str) -> None:
    command = ["run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    command += [f"--snapshot-every={tracked.EVERY}", f"--checkpoint-every={tracked.EVERY}"]
    done = subprocess.run(
        [sys.executable, "-m", "spotelastic", *command, *options, SCRIPT, name, folder],
        cwd=folder,
        env={
            **os.environ,
            "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def made(folder: Path) -> list[tuple[str, int]]:
    told = [line.split() for line in (folder / "made.txt").read_text().splitlines()]
    return [(run_id, int(step)) for run_id, step in told]


@pytest.mark.parametrize(
    ("name", "steps_of"), [("TensorBoard", in_tensorboard), ("MLflow", in_mlflow)]
)
def test_a_step_that_is_made_again_is_in_the_curve_once(
    name: str,
    steps_of: Callable[[Path, str], list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(name.lower())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train(name, tmp_path)
    steps: Any = Counter(step for _, step in made(tmp_path))
    assert steps[tracked.DIES_AT] == 2 and steps[tracked.STEPS] == 1
    [run_id] = {run_id for run_id, _ in made(tmp_path)}
    assert steps_of(tmp_path, run_id) == EACH_ONCE


@dataclass
class Named:
    """What a tracker asks a Checkpointer for."""

    run_id: str


@pytest.mark.parametrize("name", ["TensorBoard", "MLflow"])
def test_a_process_that_goes_back_logs_no_step_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name.lower())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    with tracked.tracker_of(name)(Named("run")) as tracker:
        for step in (1, 2, 3, 4, 3, 4, 5):
            tracker.log({"loss": 1.0 / step}, step)
    steps = in_tensorboard if name == "TensorBoard" else in_mlflow
    assert steps(tmp_path, "run") == [1, 2, 3, 4, 5]
    with tracked.tracker_of(name)(Named("another")) as tracker:
        tracker.log({"loss": 1.0}, 1)
        assert tracker.logged == 1


def test_wandb_is_asked_for_its_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")  # where nothing is known of the run
    with tracked.tracker_of("Wandb")(Named("run")) as tracker:
        for step in (1, 2, 3, 2, 3, 4):
            tracker.log({"loss": 1.0 / step}, step)
        assert (tracker.run.id, tracker.logged) == ("run", 4)
