"""`spotelastic run` with workers that fail, finalize, and are killed meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.patience import PATIENT

ENDS = """
import atexit, os, signal, sys, torch, torch.multiprocessing
round_ = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.multiprocessing.set_sharing_strategy("file_system")
shared = torch.ones(3).share_memory_()
print("worker", os.getpid(), flush=True)
if round_ < 2:
    atexit.register(os.kill, os.getpid(), signal.SIGKILL)
if round_ == 0:
    raise OSError("no such share")
"""


@pytest.mark.soak
def test_a_worker_that_is_killed_while_it_finalizes_ends_as_it_was_told(tmp_path: Path) -> None:
    """First after a failure, which is told once; then after its script, which is a failure."""
    (tmp_path / "ends.py").write_text(ENDS)
    command = [sys.executable, "-m", "spotelastic", "run", "--standalone", "--max-restarts", "2"]
    done = subprocess.run(
        [*command, "--storage", str(tmp_path / "storage"), "ends.py"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "] rank 0: " in line]
    assert told == [
        "[spotelastic] rank 0: OSError: no such share",
        "[spotelastic] rank 0: ended by SIGKILL",
    ]
    pids = [line.split()[-1] for line in done.stdout.splitlines() if " worker " in line]
    assert len(pids) == 3
    shared = [name for name in os.listdir("/dev/shm") if name.startswith("torch_")]  # noqa: PTH208
    assert not {name.split("_")[1] for name in shared} & set(pids)
