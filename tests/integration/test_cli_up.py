"""`spotelastic up --local` as a process: what it leaves behind is nothing, however it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UP = ("up", "--local", "--min", "1", "--max", "2", "--instance-types", "m5.large")
SCRIPT = "import time\ntime.sleep(600)\n"
BROKEN = "print('as far as here')\nraise ValueError('the loss is not a number')\n"


@contextmanager
def spotelastic(folder: Path, *args: str) -> Iterator["subprocess.Popen[str]"]:
    """The command in a session of its own, as from a terminal that nothing else uses."""
    environment = os.environ | {"SPOTELASTIC_HOME": str(folder / "home")}
    process = subprocess.Popen(
        [sys.executable, "-m", "spotelastic", *args],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def read_until(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"{words!r} was never printed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_everything_down_in_order(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with spotelastic(tmp_path, *UP, "train.py") as process:
        read_until(process, "workers spotelastic-train")
        process.send_signal(number)
        told, complaint = process.communicate(timeout=60)
    assert process.returncode == 128 + number, complaint
    assert "ending the local cloud" in told
    assert complaint == "\nstopping\n"
    assert not (tmp_path / "home/local.json").exists()


def test_the_local_cloud_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """Nothing is checked here but that nothing is left: the fixture of all tests does that."""
    (tmp_path / "train.py").write_text(SCRIPT)
    with spotelastic(tmp_path, *UP, "train.py") as process:
        read_until(process, "workers spotelastic-train")
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_a_script_that_raises_is_shown_with_its_traceback_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(BROKEN)
    arguments = ("--max-restarts", "0", "--report", "build/report.json", "train.py")
    with spotelastic(tmp_path, *UP, *arguments) as process:
        told, complaint = process.communicate(timeout=90)
    assert process.returncode == 1, complaint
    assert "ValueError: the loss is not a number" in complaint
    assert 'train.py", line 2' in complaint
    assert "Traceback (most recent call last)" in complaint
    assert "spotelastic/" not in complaint  # nothing of ours in the user's traceback
    log = complaint.rpartition("log: ")[2].strip()  # of whichever rank was the first
    assert log.startswith(f"{tmp_path}/home/logs/train/rank-")
    assert "as far as here" in Path(log).read_text()
    assert json.loads((tmp_path / "build/report.json").read_text())["job"]["state"] == "failed"
    assert "ending the local cloud" in told
    assert not (tmp_path / "home/local.json").exists()


@pytest.mark.soak
def test_training_that_ends_before_the_drill_does_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('done')\n")
    with spotelastic(tmp_path, *UP, "--drill", "--curve", "loss.png", "train.py") as process:
        told, complaint = process.communicate(timeout=90)
    assert process.returncode == 1, complaint
    assert "succeeded" in told
    assert "training ended before the drill did: no notice, loss, worker, etcd" in complaint
    assert (tmp_path / "loss.png").exists()
