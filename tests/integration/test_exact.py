"""`spotelastic run --exact`: what is set and refused, and the fingerprint of what was trained."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.draws import soaked
from support.processes.patience import PATIENT

SCRIPT = Path(__file__).parent.parent / "support/scripts/exact_training.py"
FINGERPRINT = re.compile(r"step 12: parameters, buffers and optimizers have the fingerprint (\w+)")
SAVES = "--snapshot-every", "2"
SET = "exact: set are deterministic algorithms"


def launch(
    folder: Path,
    *flags: str,
    script: Path = SCRIPT,
    kills: Mapping[int, int] | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run the script to its end. `kills` are ranks by the step in which they are killed."""
    for step, rank in (kills or {}).items():
        (folder / str(step)).write_text(str(rank))
    run = sys.executable, "-m", "spotelastic", "run", "--standalone", "--exact"
    return subprocess.run(
        [*run, *flags, str(script), str(folder)],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=3 * PATIENT,
        check=False,
    )


@pytest.mark.parametrize("variables", [{}, *soaked([{"SHARDED": "1"}])])
def test_a_run_that_loses_workers_ends_with_the_fingerprint_of_one_on_a_single_rank(
    tmp_path: Path, variables: dict[str, Any]
) -> None:
    found = set[str]()
    for ranks, kills in (("1", {}), ("3", {5: 1, 9: 2})):
        (folder := tmp_path / ranks).mkdir()
        done = launch(folder, *SAVES, "--nproc-per-node", ranks, kills=kills, **variables)
        assert done.returncode == 0, done.stderr
        assert not [each for each in kills if (folder / str(each)).exists()], "they were killed"
        output = done.stdout + done.stderr
        assert SET in output and "threads 1" in output
        found.update(FINGERPRINT.findall(output))
    (fingerprint,) = found
    assert len(fingerprint) == 64


BEGINS = """\
import torch
import spotelastic as se

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
"""
WITHOUT = (
    "with se.Checkpointer({'model': model, 'optimizer': optimizer}):\n    print('begun')",
    "optimizer.step()\nprint('begun')",
)
"""Without virtual ranks, and without a Checkpointer."""


@pytest.mark.soak
@pytest.mark.parametrize("rest", WITHOUT)
def test_a_script_without_virtual_ranks_is_refused_before_its_first_step(
    tmp_path: Path, rest: str
) -> None:
    (script := tmp_path / "without.py").write_text(BEGINS + rest)
    done = launch(tmp_path, "--max-restarts", "0", script=script)
    assert done.returncode == 1
    assert "--exact: no sampler of the state has virtual ranks" in done.stderr
    assert "Traceback" not in done.stderr and "begun" not in done.stdout


@pytest.mark.soak
def test_a_rank_with_other_threads_is_named(tmp_path: Path) -> None:
    text = "import os, torch\ntorch.set_num_threads(1 + int(os.environ['RANK']))\n"
    (script := tmp_path / "unlike.py").write_text(text + SCRIPT.read_text())
    flags = "--nproc-per-node", "2", "--max-restarts", "0"
    done = launch(tmp_path, *flags, script=script, OMP_NUM_THREADS="1")
    assert done.returncode == 1
    assert re.search(r"--exact: rank 1 on \S+ has threads 2, and rank 0 on \S+ 1", done.stderr)
