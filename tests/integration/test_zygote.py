"""How workers start, end and fail: the zygote and its children as real processes."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.processes.zygote_pool import DETACHED, WAIT, Pool, lives, tell
from support.store.etcd_members import wait_until

from spotelastic.agent.state.events import Exited, WorkerFailing, ZygoteGone
from spotelastic.agent.workers import zygote
from spotelastic.agent.workers.pool import read_stack
from spotelastic.linux import STACKS, is_ending

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


@pytest.mark.soak
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


def test_a_driver_that_torch_knows_nothing_of_is_noticed(tmp_path: Path) -> None:
    driver = str(tmp_path / "driver")
    assert not zygote.has_initialised_cuda(driver)
    with (tmp_path / "driver-0").open("w"):
        assert zygote.has_initialised_cuda(driver)
    assert not zygote.has_initialised_cuda(driver)


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
    assert made.next() == Exited("round/0", -9, gone=False), "before what it left is ended"
    assert made.next() == Exited("round/0", -9)
    assert made.next() == ZygoteGone()
    assert not lives(worker) and not lives(detached)


def test_who_had_ended_before_the_others_are_ended_is_known(pool: Callable[..., Pool]) -> None:
    made = pool()
    for rank in (0, 1):
        made.start(rank, "import os\n" + tell(f"worker{rank}") + WAIT)
    pids = [made.pid(f"worker{rank}") for rank in (0, 1)]
    os.kill(pids[0], signal.SIGKILL)
    wait_until(partial(is_ending, pids[0]), "the end of one")
    assert made.zygote.end(["round/0", "round/1"]) == {"round/0"}
    assert {made.next(), made.next()} == {Exited(f"round/{rank}", -9) for rank in (0, 1)}


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
        finalize=0.5,
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
