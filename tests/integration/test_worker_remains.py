"""What workers leave behind is removed: shared memory by cleaners, processes of a killed agent."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.zygote_pool import WAIT, WITHIN, Pool, lives, tell
from support.store.etcd_members import wait_until

from spotelastic.agent.state.events import Exited
from spotelastic.linux import await_cleaners, cleans, end_marked, mark

SHARES = f"""
import os, signal
from multiprocessing import resource_tracker, shared_memory
name = os.environ["FOLDER"].replace("/", ".")
memory = shared_memory.SharedMemory(name=name, create=True, size=8)
{tell("tracker", "resource_tracker._resource_tracker._pid")}
{tell("worker")}
"""
"""Leaves a block of shared memory to its resource tracker."""


def shared(made: Pool) -> Path:
    return Path("/dev/shm") / str(made.folder).replace("/", ".")


@pytest.mark.parametrize("end", ["", "\nraise ValueError\n", "\nos.kill(os.getpid(), 9)\n"])
def test_a_cleaner_removes_what_its_worker_shared(pool: Callable[..., Pool], end: str) -> None:
    made = pool()
    made.start(0, SHARES + end)
    while not getattr(made.next(), "gone", False):
        pass
    made.zygote.close()
    assert not shared(made).exists() and not lives(made.pid("tracker"))


def test_a_cleaner_works_beside_the_next_round(pool: Callable[..., Pool]) -> None:
    made = pool()
    made.start(0, SHARES + WAIT)
    tracker = made.pid("tracker")
    made.pid("worker")
    os.kill(tracker, signal.SIGSTOP)
    made.zygote.end(["round/0"])
    assert made.next() == Exited("round/0", -9)
    made.start(1, "print('trains')")
    assert made.next() == Exited("round/1", 0)
    assert lives(tracker) and shared(made).exists()
    os.kill(tracker, signal.SIGCONT)
    wait_until(lambda: not shared(made).exists(), "it has cleaned")


def test_a_cleaner_is_heard_out_when_the_agent_ends(pool: Callable[..., Pool]) -> None:
    made = pool()
    made.start(0, SHARES + WAIT)
    made.pid("worker")
    made.zygote.close()
    assert not shared(made).exists() and not lives(made.pid("tracker"))


def test_cleaners_of_a_killed_zygote_are_awaited(pool: Callable[..., Pool]) -> None:
    made = pool()
    made.start(0, SHARES + WAIT)
    made.pid("worker")
    os.kill(made.zygote.pid, signal.SIGKILL)
    assert made.next() == Exited("round/0", -9, gone=False)
    assert made.next() == Exited("round/0", -9)
    await_cleaners(mark(made.folder), WITHIN)
    assert not shared(made).exists() and not lives(made.pid("tracker"))


def test_a_cleaner_that_does_not_end_is_killed(tmp_path: Path) -> None:
    code = "from multiprocessing.resource_tracker import main;main(0)"
    stuck = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env={**os.environ, **mark(tmp_path)}
    )
    wait_until(lambda: cleans(stuck.pid), "it runs")
    assert end_marked(mark(tmp_path), WITHIN) == []
    assert stuck.poll() is None
    await_cleaners(mark(tmp_path), 0.0)
    assert stuck.wait(WITHIN) == -signal.SIGKILL
    assert stuck.stdin is not None
    stuck.stdin.close()


@pytest.mark.soak
def test_torch_removes_what_it_shared_by_files(pool: Callable[..., Pool]) -> None:
    made = pool(base=("torch.multiprocessing",))
    made.start(
        0,
        "import os, torch\n"
        "torch.multiprocessing.set_sharing_strategy('file_system')\n"
        "shared = torch.ones(9).share_memory_()\n"
        f"{tell('worker')}\n"
        "os.kill(os.getpid(), 9)\n",
    )
    worker = made.pid("worker")
    assert made.next() == Exited("round/0", -9)
    made.zygote.close()
    assert not list(Path("/dev/shm").glob(f"torch_{worker}_*"))


AGENT = """
import os, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import support.processes.zygote_pool as t
pool = t.Pool(Path(sys.argv[1]))
pool.start(0, t.DETACHED + t.tell("worker") + t.WAIT)
pool.pid("detached")
print(pool.pid("worker"), flush=True)
time.sleep(1000)
"""


@pytest.mark.faults
@pytest.mark.parametrize("zygote_too", [False, True])
def test_nothing_survives_a_killed_agent(tmp_path: Path, zygote_too: bool) -> None:
    tests = Path(__file__).parent.parent
    command = [sys.executable, "-c", AGENT, str(tmp_path), str(tests)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    with agent.stdout:
        worker = int(agent.stdout.readline())
    detached = int((tmp_path / "detached").read_text())
    zygote = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    if zygote_too:
        os.kill(zygote, signal.SIGSTOP)  # it will not hear of its agent's end
    agent.kill()
    agent.wait()
    if zygote_too:
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: not lives(worker), "the worker is gone")
        assert lives(detached)
        assert end_marked(mark(tmp_path), WITHIN) == []  # as the next agent does
    wait_until(lambda: not any(map(lives, (worker, detached, zygote))), "nothing is left")


def test_a_mark_ends_only_those_that_carry_it(tmp_path: Path) -> None:
    mine, other = uuid.uuid4().hex, uuid.uuid4().hex
    started = [
        subprocess.Popen(["sleep", "1000"], env={"STATE": state}, start_new_session=True)
        for state in (mine, other)
    ]
    try:
        for process in started:  # an exec that has just succeeded shows no variables yet
            variables = Path(f"/proc/{process.pid}/environ")
            wait_until(variables.read_bytes, "it has its variables")
        assert end_marked({"STATE": mine[:-1]}, 0.0) == []
        assert all(process.poll() is None for process in started)
        end_marked({"STATE": mine}, 0.0)
        assert started[0].wait(WITHIN) == -signal.SIGKILL
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_who_ends_slowly_is_waited_for_when_others_have_ended(tmp_path: Path) -> None:
    """Much memory takes a while to be given back, and a GPU longer. Meanwhile no variables show."""
    large = "memory = b'x' * 300_000_000; print(flush=True); import signal; signal.pause()"
    environ = {**os.environ, **mark(tmp_path)}
    slow = subprocess.Popen([sys.executable, "-c", large], env=environ, stdout=subprocess.PIPE)
    assert slow.stdout is not None
    with slow.stdout:
        slow.stdout.readline()
    quick = subprocess.Popen(["sleep", "1000"], env=environ)
    variables = Path(f"/proc/{quick.pid}/environ")
    wait_until(variables.read_bytes, "it has its variables")
    assert end_marked(mark(tmp_path), WITHIN) == []
    assert not lives(slow.pid) and not lives(quick.pid)
    assert [slow.wait(), quick.wait()] == [-signal.SIGKILL] * 2
