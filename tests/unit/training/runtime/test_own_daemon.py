"""The daemon of a script that runs without an agent."""

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.daemon import handover
from spotelastic_checkpoints.errors import CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Schedule
from support.checkpoints import Worker, plan_of, round_info
from support.patience import PATIENT, eventually

from spotelastic.training.runtime import local_daemon
from spotelastic.training.runtime.local_daemon import OwnDaemon


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnDaemon]:
    monkeypatch.setattr(local_daemon, "END_WITHIN", PATIENT)
    daemon = OwnDaemon("test", "n", str(tmp_path / "store"), 1)
    yield daemon
    if not daemon._over.is_set():
        daemon.close()


def begun(daemon: OwnDaemon, schedule: Schedule) -> Worker:
    client = DaemonClient(str(daemon.socket))
    epoch = client.claim("test", timeout=PATIENT).epoch
    client.close()
    daemon.begin(round_info("r1", 0, ["n"], 1, epoch, schedule=schedule))
    return Worker(str(daemon.socket), "r1", 0, 0, plan_of(1, 1))


def committed(folder: Path) -> int:
    latest = Commits(open_storage(str(folder / "store")), "test").latest()
    return latest.step if latest is not None else 0


def test_it_ends_although_a_forked_child_has_the_lifeline_too(daemon: OwnDaemon) -> None:
    """A data loader's persistent workers live as long as the script."""
    childs = os.dup(daemon._lifeline)
    try:
        daemon.close()
    finally:
        os.close(childs)
    assert daemon._process.returncode == 0
    assert not daemon._arena.exists()


def test_what_was_sealed_is_committed_when_the_script_dies_whether_it_was_due_or_not(
    daemon: OwnDaemon, tmp_path: Path
) -> None:
    worker = begun(daemon, Schedule(1, 0))
    worker.save(1, due=True)
    worker.save(2)
    worker.client._connection.close()
    daemon.close()
    assert committed(tmp_path) == 2


def test_one_that_dies_is_replaced_on_the_same_slots(
    daemon: OwnDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = begun(daemon, Schedule(1, 0))
    worker.save(1)
    died = daemon._process
    died.kill()
    eventually(lambda: daemon._process is not died, "another")
    worker.client._connection.close()
    daemon.close()
    assert committed(tmp_path) == 1
    said = "spotelastic: the checkpoint daemon died; another one has replaced it\n"
    assert capfd.readouterr().err == said


def test_a_signal_to_all_processes_of_a_job_ends_it_after_its_last_upload(
    daemon: OwnDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = begun(daemon, Schedule(1, 0))
    worker.save(1)
    daemon._process.send_signal(signal.SIGTERM)
    worker.client._connection.close()
    daemon.close()
    assert daemon._process.returncode == 0
    assert committed(tmp_path) == 1
    assert capfd.readouterr().err == "", "it was not replaced"


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_one_that_its_agent_ends_takes_its_slots_along(sig: signal.Signals, tmp_path: Path) -> None:
    """The agent may be killed before it has removed them itself."""
    reading, lifeline = os.pipe()
    process = start_daemon(
        socket=tmp_path / "socket",
        arena=tmp_path / "arena",
        storage=str(tmp_path / "storage"),
        owner="run",
        node="node",
        lifeline=reading,
    )
    os.close(reading)
    process.send_signal(sig)
    assert process.wait(PATIENT) == 0
    os.close(lifeline)
    assert (tmp_path / "arena").exists() == (sig == signal.SIGTERM)


def test_while_none_can_be_started_this_is_told_once(
    daemon: OwnDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    attempts = threading.Semaphore(0)
    start = local_daemon.start_daemon

    def refused(**_: Any) -> None:
        attempts.release()
        raise DaemonUnavailable("no memory")

    monkeypatch.setattr(local_daemon, "AGAIN", 0.01)
    monkeypatch.setattr(local_daemon, "start_daemon", refused)
    died = daemon._process
    died.kill()
    for _ in range(3):
        assert attempts.acquire(timeout=PATIENT)
    monkeypatch.setattr(local_daemon, "start_daemon", start)
    eventually(lambda: daemon._process is not died, "another")
    worker = begun(daemon, Schedule(1, 1))
    worker.save(1)
    assert worker.client.flush(PATIENT)
    worker.client.leave(clean=True)
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "spotelastic: the checkpoint daemon died, and nothing is saved until another starts: "
        "no memory",
        "spotelastic: the checkpoint daemon died; another one has replaced it",
    ]


def test_a_script_waits_for_what_the_one_before_it_left_to_be_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = tmp_path / f"{local_daemon._ARENAS}before"
    arena.mkdir()
    monkeypatch.setattr(local_daemon, "_shared_memory", lambda: tmp_path)
    monkeypatch.setattr(local_daemon, "TOLD_AFTER", 0.0)
    waits = threading.Event()
    monkeypatch.setattr(local_daemon, "_say", lambda _: waits.set())
    with (arena / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        local_daemon._await_last_upload("test", "store")  # its script is there
        handover.mark(arena, "test", "store")
        local_daemon._await_last_upload("test", "another store")
        assert not waits.is_set()
        waiting = threading.Thread(target=local_daemon._await_last_upload, args=("test", "store"))
        waiting.start()
        assert waits.wait(PATIENT)
        assert waiting.is_alive()
    waiting.join(PATIENT)
    assert not waiting.is_alive()


def test_a_daemon_that_does_not_know_the_round_yet_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(_: WorkerClient) -> None:
        raise CheckpointsError("round r1 is not the current one on this node")

    monkeypatch.setattr(WorkerClient, "_connected", unknown)
    assert not WorkerClient.__new__(WorkerClient)._reconnect(0.0)
