"""Curves of experiment trackers have each step once, although a killed rank made some twice."""

import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
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

    events = EventAccumulator(str(folder / "tensorboard" / run_id))
    events.Reload()
    return [event.step for event in events.Scalars("loss")]


def in_mlflow(folder: Path, run_id: str) -> list[int]:
    import mlflow  # type: ignore[import-not-found]

    client = mlflow.MlflowClient(f"file://{folder}/mlruns")
    [run] = client.search_runs(["0"])
    assert run.data.tags["spotelastic.run_id"] == run_id
    return [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]


def in_wandb(folder: Path, run_id: str) -> list[int]:
    """From the file that `wandb sync` sends: the newest one."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[import-not-found]

    found = map(
        Record.FromString,
        records((folder / "wandb/latest-run" / f"run-{run_id}.wandb").read_bytes()),
    )
    return [each.history.step.num for each in found if each.WhichOneof("record_type") == "history"]


def records(data: bytes, block: int = 32768) -> Iterator[bytes]:
    """What a file holds that is laid out as a log of LevelDB, after seven bytes of W&B's own."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := block - at % block) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


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
            "WANDB_SILENT": "true",
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
    ("name", "package", "steps_of"),
    [
        ("tensorboard", "tensorboard", in_tensorboard),
        ("mlflow", "mlflow", in_mlflow),
        ("wandb", "wandb", in_wandb),
    ],
)
def test_a_step_that_is_made_again_is_in_the_curve_once(
    name: str,
    package: str,
    steps_of: Callable[[Path, str], list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(package)
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


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_process_that_goes_back_logs_no_step_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    with tracked.tracker_of(name)(Named("run")) as tracker:
        for step in (1, 2, 3, 4, 3, 4, 5):
            tracker.log({"loss": 1.0 / step}, step)
    steps = in_tensorboard if name == "tensorboard" else in_mlflow
    assert steps(tmp_path, "run") == [1, 2, 3, 4, 5]
    with tracked.tracker_of(name)(Named("another")) as tracker:
        tracker.log({"loss": 1.0}, 1)
        assert tracker.logged == 1
