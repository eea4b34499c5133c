"""The folders of `spotelastic run`: whose owner is gone are removed by the next run."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from spotelastic_checkpoints.memory.arena import Arena

from spotelastic.errors import EnvironmentFailure
from spotelastic.launcher import run_folders

NOBODY = 2**22 + 1
"""A pid that no process can have: of one that is in another container, as seen from here."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """In place of the machine's shared memory."""
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def test_folders_of_a_run_that_lives_where_it_is_not_seen_stay(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid
    monkeypatch.setattr(os, "getpid", lambda: NOBODY)
    with run_folders.own_folders(shared) as folders:
        monkeypatch.setattr(os, "getpid", pid)
        assert str(NOBODY) in folders.state.name and str(NOBODY) in folders.shm.name
        run_folders.sweep(shared)
        assert folders.state.is_dir() and folders.shm.is_dir()
    assert not folders.state.exists() and not folders.shm.exists()


def test_nobody_else_looks_into_the_folders_that_states_are_in(
    tmp_path: Path, shared: Path
) -> None:
    with run_folders.own_folders(shared) as folders:
        modes = [folder.stat().st_mode & 0o777 for folder in (folders.state, folders.shm)]
    modes.append(Arena(tmp_path / "arena", 1).folder.stat().st_mode & 0o777)
    assert modes == [0o700] * 3


@pytest.mark.parametrize("held", [run_folders.OWNER_LOCK, run_folders.DAEMON_LOCK])
def test_a_folder_is_removed_when_run_and_daemon_are_gone(
    here: Path, shared: Path, held: str
) -> None:
    left = here / f"{run_folders.PREFIX}{NOBODY}-x"
    left.mkdir()
    run_folders.sweep(shared)
    assert left.is_dir(), "being made"
    (left / run_folders.OWNER_LOCK).touch()
    with (left / held).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_folders.sweep(shared)
        assert left.is_dir()
    run_folders.sweep(shared)
    assert not left.exists()


def test_a_machine_on_which_nothing_can_be_written_is_told_in_one_line(
    tmp_path: Path,
) -> None:
    for shared in (tmp_path / "missing", Path("/proc")):
        with (
            pytest.raises(EnvironmentFailure, match=f"{shared}: .*: a run needs to write there"),
            run_folders.own_folders(shared),
        ):
            pass
    assert not [*tmp_path.iterdir()], "nothing is left"


def test_logs_of_a_killed_agent_are_swept_and_those_of_a_failed_job_stay(
    tmp_path: Path, shared: Path
) -> None:
    left, kept = (
        tmp_path / f"{run_folders.LOGS_PREFIX}{NOBODY}-{name}" for name in ("left", "kept")
    )
    for folder in (left, kept):
        (folder / "0001").mkdir(parents=True)
    (left / run_folders.OWNER_LOCK).touch()
    with run_folders.own_folders(shared) as folders:
        run_folders.sweep(shared)
        assert folders.logs.is_dir() and kept.is_dir() and not left.exists()
    assert not folders.logs.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, whom only root can be")
def test_what_another_user_has_put_there_is_not_opened(here: Path, shared: Path) -> None:
    """Whoever opens a pipe waits for its other end, for ever."""
    for parent in (here, shared):
        trap = parent / f"{run_folders.PREFIX}1-trap"
        trap.mkdir()
        os.mkfifo(trap / run_folders.OWNER_LOCK)
        os.chown(trap, 65534, 65534)
        (parent / f"{run_folders.PREFIX}2-link").symlink_to(trap)
    run_folders.sweep(shared)
    assert len([*here.glob(f"{run_folders.PREFIX}*"), *shared.iterdir()]) == 4
