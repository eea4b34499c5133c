"""A user's script that is checked with mypy sees the types of the public API, not `Any`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import spotelastic as se
from spotelastic_checkpoints.errors import StorageRefused

def train(steps: int) -> float:
    return 0.5 * steps

state = {"ema": se.PerRank(0.5)}
with se.Checkpointer(state, storage="runs/a") as checkpoint:
    reveal_type(checkpoint)
    reveal_type(checkpoint.restore())
    reveal_type(checkpoint.save())
    reveal_type(checkpoint.interrupted)
reveal_type([batch for batch in se.ElasticSampler(1000, global_batch=32)])
reveal_type(se.microbatches(32, 8)[0].weight)
reveal_type(state["ema"].value)
reveal_type(se.launch(train, args=(2,), nproc_per_node=2))
reveal_type(se.dcp.CheckpointReader("runs/a"))
reveal_type(se.dcp.CheckpointWriter("runs/a"))
reveal_type(se.errors.JobFailed("it ended"))
reveal_type(se.__version__)
job = se.JobConfig("train.py", min=2, max=8, env={"EPOCHS": "3"}, snapshot_every=20)
reveal_type(job.min)
reveal_type(se.JobConfig.load(".", min=2))
reveal_type(StorageRefused("it says no"))
reveal_type(se.up(se.JobConfig("train.py", local=True, min=2)))
reveal_type(se.client.find("demo").interrupt(seconds=15).seconds)
reveal_type(se.client.clusters())
reveal_type([line.text for line in se.client.Cluster.logs(se.client.find(), rank=0)])
se.Checkpointer(state, checkpoint_evry=10)
se.launch(7)
se.JobConfig("train.py", mim=2)
se.JobConfig("train.py", min="two")
"""
SEEN = [
    "spotelastic.training.checkpointer.Checkpointer",
    "int",
    "bool",
    "bool",
    "list[list[int]]",
    "float",
    "float",
    "dict[int, float]",
    "spotelastic.training.dcp.reader.CheckpointReader",
    "spotelastic.training.dcp.writer.CheckpointWriter",
    "spotelastic.errors.JobFailed",
    "str",
    "int",
    "spotelastic.client.config.job_config.JobConfig",
    "spotelastic_checkpoints.errors.StorageRefused",
    "spotelastic.client.cluster.Cluster",
    "float | None",
    "tuple[spotelastic.model.progress.ClusterSummary, ...]",
    "list[str]",
]

# Types of other packages are left out: to read those of torch alone would take a minute.
SETTINGS = """\
[mypy]
strict = true
follow_imports = skip
[mypy-spotelastic.*,spotelastic_checkpoints.*,msgspec.*]
follow_imports = silent
"""


@pytest.mark.soak
def test_a_script_sees_types(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", "cache", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    revealed = re.findall(r'note: Revealed type is "(.*)"', done.stdout)
    assert revealed == SEEN, done.stdout + done.stderr
    refused = re.findall(r"^train\.py:(\d+): error", done.stdout, re.M)
    last = len(SCRIPT.splitlines())
    mistakes = [str(line) for line in range(last - 3, last + 1)]
    assert refused == mistakes, "the four at the end, and nothing else"
