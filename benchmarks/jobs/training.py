"""Measures training on one core while another core has an upload to do."""

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jobs.node import node
from jobs.states import Shape

import spotelastic as se


@dataclass(frozen=True, slots=True)
class Trained:
    """Steps per second on one core."""

    alone: float
    beside: float
    """Steps per second during an upload."""
    sent: float
    """Bytes per second of that upload."""
    loop: float
    """Steps per second while the other cores only count."""


def train_beside_uploads(storage: str, shape: Shape, seconds: float) -> Trained:
    """Train on the first core while the daemon runs on the others.

    The stalls of the saves themselves are not counted.
    """
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    weights = torch.rand(384, 384)
    state = shape.make()
    os.sched_setaffinity(0, cores[1:])
    with node(storage) as here:
        here.begin("r1", epoch=here.claim().epoch)
        os.sched_setaffinity(0, cores[:1])
        with se.Checkpointer(state) as checkpoint:
            here.make_ready(checkpoint)
            alone = [_train(weights, seconds / 2)]
            steps, spent, step = 0, 0.0, 1
            with _counting(cores[1:]):
                loop = _train(weights, seconds / 2)
            while spent < seconds:
                step += 1
                checkpoint.step(step)
                committed = threading.Event()
                waiter = threading.Thread(target=lambda done=committed: (here.flush(), done.set()))
                waiter.start()
                begun = time.perf_counter()
                while not committed.is_set():
                    _train_step(weights)
                    steps += 1
                spent += time.perf_counter() - begun
                waiter.join()
            alone.append(_train(weights, seconds / 2))
    sent = (step - 1) * shape.nbytes / spent
    return Trained(statistics.mean(alone), steps / spent, sent, loop)


@contextlib.contextmanager
def _counting(cores: list[int]) -> Iterator[None]:
    """Start a process per core that keeps it busy with almost nothing."""
    counts = "import os,sys\nos.sched_setaffinity(0,[int(sys.argv[1])])\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", counts, str(core)]) for core in cores]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _train_step(weights: torch.Tensor) -> None:
    for _ in range(10):
        torch.mm(weights, weights)


def _train(weights: torch.Tensor, seconds: float) -> float:
    steps, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        _train_step(weights)
        steps += 1
    return steps / spent
