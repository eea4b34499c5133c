"""The daemon of a script that runs without an agent."""

import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.daemon import handover
from spotelastic_checkpoints.errors import DaemonUnavailable, RestoreFailed
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.transfers import Peer
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Schedule
from support.processes.patience import PATIENT, eventually
from support.saving.daemons_and_workers import Worker, plan_of, round_info

from spotelastic.training.runtime.arena_folder import ArenaFolder
from spotelastic.training.runtime.local_daemon import DaemonUpkeep, OwnDaemon


class Daemons:
    """The processes that were started, and the last one's lifeline and arena."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.refused = threading.Semaphore(0)
        """Counts attempts that were refused."""
        self.refuse = False

    def start(self, *, arena: Path, lifeline: int, **more: Any) -> "subprocess.Popen[bytes]":
        if self.refuse:
            self.refused.release()
            raise DaemonUnavailable("no memory")
        self.arena = arena
        self.started.append(start_daemon(arena=arena, lifeline=lifeline, **more))
        self.lifeline = Path(f"/proc/{self.started[-1].pid}/fd/{lifeline}")
        return self.started[-1]


@dataclass
class Script:
    """Trains without an agent, in this process."""

    daemon: OwnDaemon
    daemons: Daemons


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    daemons = Daemons()
    upkeep = DaemonUpkeep(end_within=PATIENT, again=0.01, start=daemons.start)
    daemon = OwnDaemon("test", "n", str(tmp_path / "store"), 1, upkeep)
    yield Script(daemon, daemons)
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


def test_no_other_user_of_the_machine_reads_the_state(script: Script) -> None:
    client = DaemonClient(str(script.daemon.socket))
    listen = client.status().listen
    client.close()
    with pytest.raises(RestoreFailed, match="is the token the same"):
        Peer(listen, PeerCredentials())


def test_it_ends_although_a_forked_child_has_the_lifeline_too(script: Script) -> None:
    """A data loader's persistent workers live as long as the script."""
    childs = os.open(script.daemons.lifeline, os.O_WRONLY)
    try:
        script.daemon.close()
    finally:
        os.close(childs)
    assert [process.returncode for process in script.daemons.started] == [0]
    assert not script.daemons.arena.exists()


def test_what_was_sealed_is_committed_when_the_script_dies_whether_it_was_due_or_not(
    script: Script, tmp_path: Path
) -> None:
    worker = begun(script.daemon, Schedule(1, 0))
    worker.save(1, due=True)
    worker.save(2)
    worker.client.close()
    script.daemon.close()
    assert committed(tmp_path) == 2


def test_one_that_dies_is_replaced_on_the_same_slots(
    script: Script, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = begun(script.daemon, Schedule(1, 0))
    worker.save(1)
    script.daemons.started[0].kill()
    said = ""

    def replaced() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said.endswith("\n")

    eventually(replaced, "another")
    assert said == "spotelastic: the checkpoint daemon died; another one has replaced it\n"
    worker.client.close()
    script.daemon.close()
    assert committed(tmp_path) == 1
    assert capfd.readouterr().err == ""


def test_a_signal_to_all_processes_of_a_job_ends_it_after_its_last_upload(
    script: Script, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = begun(script.daemon, Schedule(1, 0))
    worker.save(1)
    script.daemons.started[0].send_signal(signal.SIGTERM)
    worker.client.close()
    script.daemon.close()
    assert [process.returncode for process in script.daemons.started] == [0], "no other was started"
    assert committed(tmp_path) == 1
    assert capfd.readouterr().err == ""


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
    script: Script, capfd: pytest.CaptureFixture[str]
) -> None:
    daemons = script.daemons
    daemons.refuse = True
    daemons.started[0].kill()
    for _ in range(3):
        assert daemons.refused.acquire(timeout=PATIENT)
    daemons.refuse = False
    eventually(lambda: len(daemons.started) == 2, "another")
    worker = begun(script.daemon, Schedule(1, 1))
    worker.save(1)
    assert worker.client.flush(PATIENT)
    worker.client.leave(clean=True)
    told = ""

    def replaced() -> bool:
        nonlocal told
        told += capfd.readouterr().err
        return told.endswith("another one has replaced it\n")

    eventually(replaced, "another")
    assert told.splitlines() == [
        "spotelastic: the checkpoint daemon died, and nothing is saved until another starts: "
        "no memory",
        "spotelastic: the checkpoint daemon died; another one has replaced it",
    ]


def test_a_script_waits_for_what_the_one_before_it_left_to_be_uploaded(tmp_path: Path) -> None:
    waits = threading.Event()
    arenas = ArenaFolder(tmp_path, told_after=0.0, tell=lambda _: waits.set())
    arena = arenas.new()
    with (arena / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arenas.await_last_upload("test", "store")  # its script is there
        handover.mark(arena, "test", "store")
        arenas.await_last_upload("test", "another store")
        assert not waits.is_set()
        waiting = threading.Thread(target=arenas.await_last_upload, args=("test", "store"))
        waiting.start()
        assert waits.wait(PATIENT)
        assert waiting.is_alive()
    waiting.join(PATIENT)
    assert not waiting.is_alive()


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, whom only root can be")
def test_an_arena_of_another_user_holds_nobody_up(tmp_path: Path) -> None:
    arenas = ArenaFolder(tmp_path)
    trap = arenas.new()
    for name in ("ending", "lock"):
        os.mkfifo(trap / name)
    os.chown(trap, 65534, 65534)
    os.utime(trap, (1, 1))
    arenas.await_last_upload("test", "store")
    arenas.sweep()
    assert trap.is_dir()
