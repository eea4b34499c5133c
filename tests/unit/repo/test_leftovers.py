"""The check for leftovers finds what it is there for."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes.leftovers import look

from spotelastic.process_environment import environment_of

DETACH = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
print(subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""


@contextmanager
def nothing_new() -> Iterator[list[str]]:
    """Yields a list that holds what was found once the block is left.

    Shared memory that comes meanwhile may be that of another session on this machine.
    """
    before, found = look(), list[str]()
    yield found
    found += [each for each in look().since(before) if not each.startswith("shared memory")]


def test_a_test_that_ends_what_it_started_leaves_nothing() -> None:
    with nothing_new() as found:
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    assert found == []


def test_a_child_is_found_even_when_it_left_the_session_and_its_parent() -> None:
    with nothing_new() as found:
        told = subprocess.run(
            [sys.executable, "-c", DETACH], check=True, stdout=subprocess.PIPE, text=True
        )
    subprocess.run(["kill", "-9", told.stdout.strip()], check=True)
    assert len(found) == 1
    assert told.stdout.strip() in found[0]


def by_fork() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


def by_spawn() -> int:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    return os.posix_spawn(sleep[0], sleep, os.environ)


@pytest.mark.parametrize("start", [by_fork, by_spawn])
def test_a_child_is_found_however_it_was_started(start: Callable[[], int]) -> None:
    """Also right after a look that found none."""
    with nothing_new() as found:
        pid = start()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert any(f"({pid})" in each for each in found), found


def test_a_thread_is_found() -> None:
    end = threading.Event()
    with nothing_new() as found:
        thread = threading.Thread(target=end.wait, name="forgotten", daemon=False)
        thread.start()
    end.set()
    thread.join()
    assert any("forgotten" in each for each in found)


def test_shared_memory_is_found() -> None:
    file = Path(f"/dev/shm/spotelastic-leftover-{uuid.uuid4().hex}")
    before = look()
    file.touch()
    found = look().since(before)
    file.unlink()
    assert f"shared memory {file}" in found


def test_a_process_whose_program_has_just_begun_is_known_by_its_environment() -> None:
    """The kernel tells its starter first, and has its environment a moment later."""
    environ = os.environ | {"SPOTELASTIC_BEGUN": "yes"}
    for _ in range(20):
        begun = subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True)
        found = environment_of(begun.pid)
        begun.kill()
        begun.wait()
        assert b"SPOTELASTIC_BEGUN=yes" in found.split(b"\0")
