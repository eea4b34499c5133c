"""The zygote and its children as real processes, without an agent around them."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.etcd import wait_until

from spotelastic.agent.workers import zygote
from spotelastic.agent.workers.pool import (
    Exited,
    PoolEvent,
    StartOrder,
    Warm,
    WorkerFailing,
    Zygote,
    ZygoteGone,
    read_stack,
)
from spotelastic.agent.workers.zygote import ZygotePlan
from spotelastic.linux import STACKS, await_cleaners, cleans, end_marked, mark

WITHIN = 20.0


class Pool:
    """A zygote, its events, and what its workers print."""

    def __init__(self, folder: Path, **plan: object) -> None:
        self.folder = folder
        self.env = {**os.environ, **mark(folder)}
        self._events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        made = ZygotePlan(os.getpid(), str(folder), **plan)  # type: ignore[arg-type]
        self.zygote = Zygote(made, self.env, mark(folder), self._events.put)
        warm = self.next()
        assert isinstance(warm, Warm)
        self.info: Mapping[str, object] = warm.info

    def next(self) -> PoolEvent:
        return self._events.get(timeout=WITHIN)

    def start(self, rank: int, code: str, **order: Any) -> Path:
        """Run Python `code` as a worker; the file with what it prints."""
        script = self.folder / f"script-{rank}.py"
        script.write_text(code)
        output = self.folder / f"rank-{rank}.log"
        env = {
            **self.env,
            "SPOTELASTIC_LOCAL_RANK": str(rank),
            "FOLDER": str(self.folder),
            "TORCHELASTIC_ERROR_FILE": str(self.folder / f"error-{rank}.json"),
        }
        argv, cwd = (str(script),), str(self.folder)
        with output.open("wb") as file:
            self.zygote.start(
                StartOrder(f"round/{rank}", "worker", argv, env, cwd, **order), file.fileno()
            )
        return output

    def pid(self, name: str) -> int:
        """Of a process that has told its own in a file, once it has."""
        file = self.folder / name
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), f"{name} runs")
        return int(file.read_text())


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    with contextlib.ExitStack() as stack:

        def make(**plan: object) -> Pool:
            made = Pool(tmp_path, **plan)
            stack.callback(made.zygote.close)
            return made

        yield make


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def tell(name: str, pid: str = "os.getpid()") -> str:
    """Code that writes a pid to a file, whole or not at all."""
    file = f"os.environ['FOLDER'] + '/{name}'"
    write = f"open({file} + '.new', 'w').write(f'{{{pid}}}\\n')"
    return f"{write}; os.rename({file} + '.new', {file})"


DETACHED = f"""
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        {tell("detached")}
        while True:
            signal.pause()
    os._exit(0)
os.wait()
"""
"""Leaves a daemon: in a session of its own, and nobody's child."""
WAIT = "\nimport signal\nwhile True:\n    signal.pause()\n"


# -- how workers start ----------------------------------------------------------------------------

IMPORTED = "import sys, os\nprint('colorsys' in sys.modules, os.getsid(0) == os.getpid())"


@pytest.mark.parametrize("warm", [True, False])
def test_a_worker_is_forked_or_a_fresh_process(pool: Callable[..., Pool], warm: bool) -> None:
    made = pool(warm=warm, base=("colorsys",))
    output = made.start(0, IMPORTED)
    assert made.next() == Exited("round/0", 0)
    assert output.read_text() == f"{warm} True\n"


DRAWS = """
import random, numpy, torch
print(random.random(), numpy.random.random(), torch.rand(1, dtype=torch.float64).item())
"""


def test_forked_workers_draw_random_numbers_of_their_own(pool: Callable[..., Pool]) -> None:
    made = pool(base=("numpy.random", "torch"))
    outputs = []
    for rank in (0, 1):
        outputs.append(made.start(rank, DRAWS))
        assert made.next() == Exited(f"round/{rank}", 0)
    drawn = [number for output in outputs for number in output.read_text().split()]
    assert len(drawn) == len(set(drawn)) == 6


def test_a_fresh_worker_fails_as_a_forked_one_does(pool: Callable[..., Pool]) -> None:
    made = pool(warm=False)
    output = made.start(0, "def go():\n    raise ValueError('no such column')\ngo()\n")
    assert made.next() == WorkerFailing("round/0", 1)
    assert made.next() == Exited("round/0", 1)
    last = output.read_text().splitlines()
    assert last[-1] == "ValueError: no such column" and "script-0.py" in last[1]


SPOILERS = {
    "left a thread running": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
    "initialised CUDA": "import torch\ntorch.cuda.initialised = True\n",
}


def test_a_driver_that_torch_knows_nothing_of_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote, "_DRIVER", str(tmp_path / "driver"))
    assert not zygote._has_initialised_cuda()
    with (tmp_path / "driver-0").open("w"):
        assert zygote._has_initialised_cuda()
    assert not zygote._has_initialised_cuda()


@pytest.mark.parametrize("reason", SPOILERS)
def test_a_module_that_no_fork_survives_switches_forking_off(
    pool: Callable[..., Pool], tmp_path: Path, reason: str
) -> None:
    (tmp_path / "torch.py").write_text(
        "class cuda:\n"
        "    initialised = False\n"
        "    def is_initialized():\n"
        "        return cuda.initialised\n"
    )
    (tmp_path / "spoiler.py").write_text(SPOILERS[reason])
    made = pool(base=("colorsys",), preload=("nosuch", "decimal", "spoiler"))
    assert made.info["spoiled"] == f"spoiler {reason}"
    assert made.info["failed"] == {"nosuch": "ModuleNotFoundError: No module named 'nosuch'"}
    output = made.start(0, IMPORTED)
    assert made.next() == Exited("round/0", 0)
    assert output.read_text() == "False True\n"


def test_a_module_that_ends_its_thread_may_be_preloaded(
    pool: Callable[..., Pool], tmp_path: Path
) -> None:
    (tmp_path / "tidy.py").write_text(
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()\n"
    )
    made = pool(base=("colorsys",), preload=("tidy",))
    assert made.info["spoiled"] == ""
    output = made.start(0, IMPORTED)
    assert made.next() == Exited("round/0", 0)
    assert output.read_text() == "True True\n"


# -- how workers end ------------------------------------------------------------------------------

WITH_HELP = f"""
import os, signal, sys

def say(word):
    with open(os.environ["FOLDER"] + "/said", "a") as file:
        file.write(word + "\\n")

def asked(*_):
    say("asked")
    sys.exit(0)

helper = os.fork()
signal.signal(signal.SIGTERM, asked if helper == 0 else signal.SIG_DFL)
if helper == 0:
    {tell("helper")}
    while True:
        signal.pause()

def save(*_):
    os.kill(helper, 0)  # it is there, as data loaders must be while their owner saves
    say("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
{tell("leader")}
while True:
    signal.pause()
"""


def test_a_worker_is_asked_to_end_before_what_helps_it_to_save(pool: Callable[..., Pool]) -> None:
    made = pool()
    made.start(0, WITH_HELP)
    made.pid("leader")
    helper = made.pid("helper")
    made.zygote.end(["round/0"], signal.SIGTERM)
    assert made.next() == Exited("round/0", 0, gone=False)
    assert made.next() == Exited("round/0", 0)
    assert (made.folder / "said").read_text().split() == ["saved", "asked"]
    assert not lives(helper)


def test_what_does_not_end_when_asked_is_killed_when_the_grace_is_over(
    pool: Callable[..., Pool],
) -> None:
    made = pool()
    ignore = WITH_HELP.replace("asked if helper == 0", "signal.SIG_IGN if helper == 0")
    made.start(0, ignore)
    made.pid("leader")
    helper = made.pid("helper")
    made.zygote.end(["round/0"], signal.SIGTERM)
    assert made.next() == Exited("round/0", 0, gone=False)
    assert lives(helper)
    made.zygote.end(["round/0"])
    assert made.next() == Exited("round/0", 0)
    assert not lives(helper)


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("\nos.kill(os.getpid(), 11)\n", -11)],
    ids=["done", "crashed"],
)
def test_what_a_worker_left_behind_ends_with_it(
    pool: Callable[..., Pool], end: str, code: int
) -> None:
    made = pool()
    there = f"os.path.exists({str(made.folder / 'detached')!r})"
    wait = f"import time\nwhile not {there}: time.sleep(0.01)"
    made.start(0, f"{DETACHED}\n{wait}\n{end}")
    assert made.next() == Exited("round/0", code, gone=False)
    assert made.next() == Exited("round/0", code)
    assert not lives(made.pid("detached"))


def test_what_has_detached_itself_stays_while_another_worker_works(
    pool: Callable[..., Pool],
) -> None:
    made = pool()
    made.start(1, WAIT)
    made.start(0, DETACHED)
    assert made.next() == Exited("round/0", 0)
    detached = made.pid("detached")
    assert lives(detached)
    made.zygote.end(["round/1"])
    assert [made.next(), made.next()] == [
        Exited("round/1", -9, gone=False),
        Exited("round/1", -9),
    ]
    assert not lives(detached)


def test_nothing_survives_a_killed_zygote(pool: Callable[..., Pool]) -> None:
    made = pool()
    made.start(0, DETACHED + tell("worker") + WAIT)
    worker, detached = made.pid("worker"), made.pid("detached")
    os.kill(made.zygote.pid, signal.SIGKILL)
    assert made.next() == Exited("round/0", -9)
    assert made.next() == ZygoteGone()
    assert not lives(worker) and not lives(detached)


# -- the time between a failure and its end -------------------------------------------------------

FINALIZES = f"""
import atexit, os, signal
def finalize():
    {tell("finalizes")}
    while True:
        signal.pause()
atexit.register(finalize)
"""


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(
    ("end", "code"), [("raise ValueError", 1), ("raise SystemExit(7)", 7), ("", 0)]
)
def test_a_failure_is_told_before_its_worker_ends(
    pool: Callable[..., Pool], end: str, code: int, warm: bool
) -> None:
    made = pool(warm=warm)
    made.start(0, FINALIZES + end)
    if code:
        assert made.next() == WorkerFailing("round/0", code)
    os.kill(made.pid("finalizes"), signal.SIGKILL)
    assert made.next() == Exited("round/0", -9)


def test_a_failed_worker_whose_threads_never_end_shows_their_stacks_and_ends(
    pool: Callable[..., Pool],
) -> None:
    made = pool()
    output = made.start(
        0,
        "import threading\n"
        "def wait_for_ever():\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=wait_for_ever).start()\n"
        "raise ValueError\n",
        finalize=0.1,
    )
    assert made.next() == WorkerFailing("round/0", 1)
    assert made.next() == Exited("round/0", 1)
    assert "in wait_for_ever" in output.read_text()


def test_a_failure_in_a_process_that_a_worker_has_forked_is_not_its_own(
    pool: Callable[..., Pool],
) -> None:
    made = pool()
    output = made.start(
        0, "import os\nif os.fork() == 0:\n    raise ValueError('inner')\nprint(os.wait()[1])\n"
    )
    assert made.next() == Exited("round/0", 0)
    assert output.read_text().splitlines()[-2:] == ["ValueError: inner", "256"]
    assert not (made.folder / "error-0.json").exists()


# -- what removes shared memory -------------------------------------------------------------------

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
import test_zygote as t
pool = t.Pool(Path(sys.argv[1]))
pool.start(0, t.DETACHED + t.tell("worker") + t.WAIT)
pool.pid("detached")
print(pool.pid("worker"), flush=True)
time.sleep(1000)
"""


@pytest.mark.faults
@pytest.mark.parametrize("zygote_too", [False, True])
def test_nothing_survives_a_killed_agent(tmp_path: Path, zygote_too: bool) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", AGENT, str(tmp_path), str(here), str(here.parent)]
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
        assert end_marked({"STATE": mine[:-1]}, 0.0) == []
        assert all(process.poll() is None for process in started)
        end_marked({"STATE": mine}, 0.0)
        assert started[0].wait(WITHIN) == -signal.SIGKILL
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


# -- stacks ---------------------------------------------------------------------------------------


def test_a_stack_is_told_without_what_comes_behind_it(tmp_path: Path) -> None:
    dump = tmp_path / "rank-0.stack"
    other = 'Thread 0x07 (most recent call first):\n  File "a.py", line 5 in help\n\n'
    main = 'Current thread 0x08 (most recent call first):\n  File "a.py", line 9 in wait\n'
    for text in (other + main, main + "\n" + other, other + main + "\n" + other[:60]):
        dump.write_text(text)
        assert read_stack(dump).rstrip() == main.rstrip()


@pytest.mark.parametrize("warm", [True, False])
def test_a_worker_that_blocks_tells_the_stacks_of_its_threads(
    pool: Callable[..., Pool], warm: bool
) -> None:
    made = pool(warm=warm)
    stacks = made.folder / "rank-0.stack"
    made.start(
        0,
        "import os, threading\n"
        "def wait_for_ever():\n"
        "    threading.Event().wait()\n"
        "def help_for_ever():\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=help_for_ever, daemon=True).start()\n"
        f"{tell('worker')}\n"
        "wait_for_ever()\n",
        stacks=str(stacks),
    )
    made.pid("worker")

    def blocks() -> bool:
        made.zygote.send_signal(["round/0"], STACKS)
        return "in wait_for_ever" in read_stack(stacks)

    wait_until(blocks, "the main thread's stack is there")
    assert "in help_for_ever" in stacks.read_text()
    assert "in help_for_ever" not in read_stack(stacks)
    made.zygote.end(["round/0"])
    assert made.next() == Exited("round/0", -9)
