"""`spotelastic up --local` as a process: what it leaves behind is nothing, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.clusters.local_cloud import environment, until
from support.processes.patience import PATIENT
from support.processes.webhooks import TOKEN, webhook

from spotelastic.local import cloud
from spotelastic.local.fault_client import FaultClient

UP = ("up", "--local", "--min", "1", "--max", "2", "--instance-types", "m5.large")
SCRIPT = "import time\ntime.sleep(600)\n"
BROKEN = "print('as far as here')\nraise ValueError('the loss is not a number')\n"


REHEARSED = """import sys
import torch
import torch.distributed as dist
import spotelastic as se
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
lr = 0.1
with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    for step in checkpoint.steps(24):
        with step:
            lr *= float(sys.argv[1])
            for group in optimizer.param_groups:
                group["lr"] = lr
            generator = torch.Generator().manual_seed(step.number)
            loss = model(torch.randn(8, 4, generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
"""It comes back as it was where its argument is 1: nothing saves its learning rate."""


@contextmanager
def spotelastic(
    folder: Path, *args: str, stdin: int = subprocess.DEVNULL
) -> Iterator["subprocess.Popen[str]"]:
    """The command in a session of its own, as from a terminal that nothing else uses."""
    own = os.environ | {"SPOTELASTIC_HOME": str(folder / "home")}
    process = subprocess.Popen(
        [sys.executable, "-m", "spotelastic", *args],
        cwd=folder,
        env=own,
        stdin=stdin,
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


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"{words!r} was never printed")


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_everything_down_in_order(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with spotelastic(tmp_path, *UP, "train.py") as process:
        read_until(process, "workers spotelastic-train")
        process.send_signal(number)
        told, complaint = process.communicate(timeout=PATIENT)
    assert process.returncode == 128 + number, complaint
    assert "ending the local cloud" in told
    assert complaint == "\nstopping\n"
    assert not (tmp_path / "home/local.json").exists()


@pytest.mark.soak
def test_the_local_cloud_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """Nothing is checked here but that nothing is left: the fixture of all tests does that."""
    (tmp_path / "train.py").write_text(SCRIPT)
    with spotelastic(tmp_path, *UP, "train.py") as process:
        read_until(process, "workers spotelastic-train")
        process.kill()
        process.communicate(timeout=PATIENT)
    assert process.returncode == -signal.SIGKILL


def test_a_script_that_raises_is_shown_with_its_traceback_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(BROKEN)
    arguments = ("--max", "1", "--max-restarts", "0", "--report", "build/report.json", "train.py")
    with webhook() as hook, spotelastic(tmp_path, *UP, "--notify", hook.url, *arguments) as process:
        told, complaint = process.communicate(timeout=2 * PATIENT)
    assert process.returncode == 1, complaint
    assert "ValueError: the loss is not a number" in complaint
    assert 'train.py", line 2' in complaint
    assert "Traceback (most recent call last)" in complaint
    assert "spotelastic/" not in complaint  # nothing of ours in the user's traceback
    log = complaint.rpartition("log: ")[2].strip()  # of whichever rank was the first
    assert log.startswith(f"{tmp_path}/home/logs/train/rank-")
    assert "as far as here" in Path(log).read_text()
    assert json.loads((tmp_path / "build/report.json").read_text())["job"]["state"] == "failed"
    page = (tmp_path / "build/report.html").read_text()
    assert "ValueError: the loss is not a number" in page
    assert ">failed</span>" in page
    assert "ending the local cloud" in told
    assert not (tmp_path / "home/local.json").exists()
    (end,) = (each for each in hook.heard if each["title"] == "train has failed")
    assert "ValueError: the loss is not a number" in end["message"]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 10
    shown = [file for file in files if TOKEN.encode() in file.read_bytes()]
    assert not shown and TOKEN not in told + complaint


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("factor", ["1", "0.9"])
def test_a_script_is_rehearsed_on_the_first_node_before_others_are_launched(
    tmp_path: Path, factor: str
) -> None:
    (tmp_path / "train.py").write_text(REHEARSED)
    arguments = ("--rehearse", "first", "--report", "report.json", "train.py", factor)
    with spotelastic(tmp_path, *UP[:2], "--min", "2", "--max", "2", *arguments) as process:
        told, complaint = process.communicate(timeout=8 * PATIENT)
    launched = [found.start() for found in re.finditer("worker node i-.* was launched", told)]
    if factor == "1":
        assert process.returncode == 0, told + complaint
        rehearsed = told.index("rehearsed train.py 1: interruptions change nothing")
        assert [at > rehearsed for at in launched] == [False, True]
    else:
        assert process.returncode == 1, told + complaint
        assert "train.py 0.9 does not come back as it was" in complaint
        assert "lr of group 0 is" in complaint
        assert len(launched) == 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_first_node_that_is_taken_while_it_rehearses_is_replaced_by_one_that_rehearses(
    tmp_path: Path,
) -> None:
    """Nobody waits for it, and no other node is launched in the meantime."""
    (tmp_path / "train.py").write_text(REHEARSED)
    arguments = ("--rehearse", "first", "--report", "report.json", "train.py", "1")
    with spotelastic(tmp_path, *UP[:2], "--min", "2", "--max", "2", *arguments) as process:
        begun = read_until(process, "rehearsing train.py 1 before other nodes")
        (first,) = re.findall(r"(i-\w+): rehearsing train.py", begun)
        with environment(SPOTELASTIC_HOME=str(tmp_path / "home")):
            info = cloud.find()
            assert info is not None
            FaultClient(info).kill(first)
        told, complaint = process.communicate(timeout=12 * PATIENT)
    assert process.returncode == 0, told + complaint
    (second,) = re.findall(r"(i-\w+): rehearsing train.py", told)
    assert second != first
    held, after = told.split(f"{second}: rehearsed train.py 1: interruptions change nothing")
    assert set(re.findall(r"worker node (i-\w+) in \S+ was launched", held)) <= {first, second}
    assert len(re.findall(r"worker node i-\w+ in \S+ was launched", after)) == 1


@pytest.mark.soak
def test_training_that_ends_before_the_drill_does_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('done')\n")
    with spotelastic(tmp_path, *UP, "--drill", "--curve", "loss.svg", "train.py") as process:
        told, complaint = process.communicate(timeout=2 * PATIENT)
    assert process.returncode == 1, complaint
    assert "succeeded" in told
    assert (
        "training ended before the drill did: it lacks spot notice, node lost, worker" in complaint
    )
    assert (tmp_path / "loss.svg").exists()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_two_jobs_that_start_at_once_share_a_cloud_and_neither_ends_the_other(
    tmp_path: Path,
) -> None:
    """One of them is killed with its command; the other one trains on without any."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / ".spotelasticignore").write_text("home/\n")
    with (
        spotelastic(tmp_path, *UP, "--name", "a", "train.py") as attached,
        spotelastic(tmp_path, *UP, "--name", "b", "--detach", "train.py") as detached,
    ):
        told, complaint = detached.communicate(timeout=200)
        assert detached.returncode == 0, told + complaint
        assert "b stays up" in told
        read_until(attached, "round 1 started")
        assert listed(tmp_path) == {"a", "b"}
        attached.kill()
        attached.communicate(timeout=PATIENT)
    until(lambda: listed(tmp_path) == {"b"})
    assert command(tmp_path, "status", "b", "--json")["state"] == "running"
    with spotelastic(tmp_path, "down") as down:
        told, complaint = down.communicate(timeout=120)
    assert (down.returncode, complaint) == (0, ""), told
    assert told == "ending the local cloud\nb is gone\n"
    assert not (tmp_path / "home/local.json").exists()


def listed(folder: Path) -> set[str]:
    return {each["name"] for each in command(folder, "ls", "--json")}


def command(folder: Path, *args: str) -> Any:
    with spotelastic(folder, *args) as process:
        told, complaint = process.communicate(timeout=PATIENT)
    assert process.returncode == 0, complaint
    return json.loads(told)


TRAINS = """
import torch
import torch.distributed as dist
import spotelastic as se

dist.init_process_group("gloo")
with se.Checkpointer({"model": torch.nn.Linear(2, 1)}) as checkpoint:
    step = begun = checkpoint.restore()
    while step < begun + 3:
        step += 1
        checkpoint.step(step)
print("trained from", begun, flush=True)
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_what_was_trained_is_kept_named_gone_on_from_exported_and_deleted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / ".spotelasticignore").write_text("home/\n")
    for begun in (0, 3):
        with spotelastic(tmp_path, *UP, "--max", "1", "train.py") as process:
            told, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, told + complaint
        assert f"round 1 started at step {begun}" in told
        kept = rf"the checkpoints of train are kept in (\S+): .*, up to step {begun + 3}; "
        found = re.search(kept, told)
        assert found is not None
        named = found[1]
        assert Path(named).is_relative_to(tmp_path / "home")
    for where in ("train", named, "s3" + named.partition("/s3")[2].replace("/", "://", 1)):
        steps = {
            each["step"]: each["latest"]
            for each in command(tmp_path, "ckpt", "ls", where, "--json")
        }
        assert steps == {3: False, 6: True}, where
    with spotelastic(tmp_path, "ckpt", "export", "train", "model.pt") as process:
        told, complaint = process.communicate(timeout=PATIENT)
    assert process.returncode == 0, complaint
    assert (tmp_path / "model.pt").stat().st_size
    down = ("down", "train", "--local", "--delete-data")
    with spotelastic(tmp_path, *down, stdin=subprocess.PIPE) as process:
        told, complaint = process.communicate("train\n", timeout=60)
    assert process.returncode == 0, complaint
    assert f"deleting {named}" in told and not Path(named).parent.exists()
