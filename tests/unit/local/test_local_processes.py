"""The processes of instances are found by their mark, and ended."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.processes.patience import PATIENT

from spotelastic.local.base import processes

TREE = """
import subprocess, sys, time
sleep = ["sleep", "1000"]
subprocess.Popen(sleep, start_new_session=True)
subprocess.Popen(sleep, env={"PATH": "/bin"})  # without the mark
print("up", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def instance() -> Iterator["subprocess.Popen[str]"]:
    marks = {processes.CLOUD: f"test-{os.getpid()}", processes.INSTANCE: "i-1"}
    leader = subprocess.Popen(
        [sys.executable, "-c", TREE],
        env={**os.environ, **marks},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert leader.stdout
    leader.stdout.readline()
    yield leader
    processes.end(lambda: found() if leader.poll() is None else [])
    leader.wait(PATIENT)
    leader.stdout.close()


def found(instance: str = "") -> list[processes.LocalProcess]:
    return processes.marked(f"test-{os.getpid()}", instance)


def test_an_instance_has_its_leader_and_all_below(instance: "subprocess.Popen[str]") -> None:
    pids = {process.pid for process in found("i-1")}
    assert instance.pid in pids
    assert len(pids) == 3
    assert found("i-2") == []


def test_ending_leaves_none(instance: "subprocess.Popen[str]") -> None:
    before = found()
    processes.end(found)
    assert instance.wait(PATIENT) == -9
    assert not any(processes.started_at(process.pid) for process in before)


def test_a_process_is_told_from_a_later_one_with_its_pid() -> None:
    assert processes.started_at(os.getpid()) == processes.started_at(os.getpid()) > 0
    ended = subprocess.Popen(["true"])
    ended.wait(PATIENT)
    assert processes.started_at(ended.pid) == 0
