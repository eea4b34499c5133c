"""A user's script that is checked with mypy sees the types of the public API, not `Any`."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = """\
import spotelastic as se
from spotelastic_checkpoints.errors import StorageRefused

def train(steps: int) -> float:
    return 0.5 * steps

state = {"ema": se.PerRank(0.5)}
sampler = se.ElasticSampler(1000, global_batch=32)
with se.Checkpointer(state, storage="runs/a") as checkpoint:
    reveal_type(checkpoint)
    reveal_type(checkpoint.restore())
    reveal_type(checkpoint.interrupted)
    reveal_type(checkpoint.save())
reveal_type(sampler.epoch)
reveal_type([batch for batch in sampler])
reveal_type(se.microbatches(32, 8)[0].weight)
reveal_type(se.PerRank(0.5).value)
reveal_type(se.launch(train, args=(2,), nproc_per_node=2))
reveal_type(se.CheckpointReader("runs/a"))
reveal_type(se.CheckpointWriter("runs/a"))
reveal_type(se.WorkerFailed("it ended"))
reveal_type(StorageRefused("no").args)
reveal_type(se.__version__)
se.Checkpointer(state, checkpoint_evry=10)
se.launch(7)
"""

# Only the types of spotelastic itself are asked for: to read all of torch would take a minute.
SETTINGS = """\
[mypy]
strict = true
[mypy-torch.*,boto3.*,botocore.*,numpy.*]
follow_imports = skip
"""


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
    print(done.stdout)
    assert revealed == []
