"""Threads step back behind training, also where this process may not raise its own priority."""

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from spotelastic_checkpoints.threads import NICENESS, step_back

FORK = multiprocessing.get_context("fork")


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def _in_a_thread(nice: int, answers: "multiprocessing.Queue[object]") -> None:
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)  # as a user's process, which can only lower it
    with ThreadPoolExecutor(1, initializer=step_back) as pool:
        try:
            answers.put(pool.submit(_nice).result())
        except Exception as error:
            answers.put(repr(error))


@pytest.mark.parametrize("above", [0, 4, 19])
def test_a_thread_never_raises_its_priority(above: int) -> None:
    nice = min(19, _nice() + above)
    answers: multiprocessing.Queue[object] = FORK.Queue()
    process = FORK.Process(target=_in_a_thread, args=(nice, answers))
    process.start()
    assert answers.get(timeout=60) == max(NICENESS, nice)
    process.join()
