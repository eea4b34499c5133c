"""Measures training on one core while another core has an upload to do."""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jobs.node import Node, node
from jobs.states import Shape
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.storage.open import open_storage

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
                waiter = threading.Thread(target=_flush, args=(here, committed))
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


@dataclass(frozen=True, slots=True)
class BesideFiles:
    """Steps of a loop that saves, turn by turn: per second, and per second of its core's time."""

    without: list[tuple[float, float]] = field(default_factory=list)
    beside: list[tuple[float, float]] = field(default_factory=list)
    """Those of turns in which a kept folder is uploaded."""
    kept: list[int] = field(default_factory=list)
    """Bytes of it that were kept within these turns."""

    def shares(self) -> tuple[float, float]:
        """Return what is left of both beside files, as the medians of neighbouring turns."""
        pairs = list(zip(self.without, self.beside, strict=True))
        by_time, by_core = (statistics.median(b[at] / a[at] for a, b in pairs) for at in (0, 1))
        return by_time, by_core


SAVE_EVERY = 2.0
"""Seconds between saves of that loop."""
FILES = 8
"""Files in that folder."""


def train_beside_files(
    storage: str, shape: Shape, nbytes: int, turns: int, seconds: float
) -> BesideFiles:
    """Train and save on the first core, in turns with and without `nbytes` of new files to keep.

    The daemon runs on the other cores. All of a turn counts, the stalls of its saves included.
    """
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    weights, state, found = torch.rand(384, 384), shape.make(), BesideFiles()
    store, step = FileStore(open_storage(storage)), 1
    os.sched_setaffinity(0, cores[1:])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
        folder = Path(work) / "out"
        folder.mkdir()
        with node(storage, folder=Path(work), outputs=("out",)) as here:
            here.begin("r1", epoch=here.claim().epoch)
            os.sched_setaffinity(0, cores[:1])
            with se.Checkpointer(state) as checkpoint:
                here.make_ready(checkpoint)
                for turn in range(2 * turns):
                    has_files = turn % 4 in (1, 2)  # neither kind is always the first of two
                    begun_at = time.time_ns()
                    if has_files:
                        _write_files(folder, nbytes)
                    steps, begun, save_at, used = 0, time.perf_counter(), 0.0, time.thread_time()
                    while (spent := time.perf_counter() - begun) < seconds:
                        if spent >= save_at:
                            step, save_at = step + 1, spent + SAVE_EVERY
                            checkpoint.step(step)
                        _train_step(weights)
                        steps += 1
                    rates = steps / spent, steps / (time.thread_time() - used)
                    (found.beside if has_files else found.without).append(rates)
                    if has_files:
                        files = store.kept()[0].files.values() if store.kept() else ()
                        kept = (each.nbytes for each in files if each.mtime >= begun_at)
                        found.kept.append(sum(kept))
                    here.flush()
                    here.client.flush_files(600)
    return found


def _write_files(folder: Path, nbytes: int) -> None:
    """Write files that have nothing in common with those before."""
    data = os.urandom(nbytes // FILES)
    for number in range(FILES):
        (folder / f"{number}.pt").write_bytes(data[number:] + data[:number])


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


def _flush(here: Node, done: threading.Event) -> None:
    here.flush()
    done.set()


def _train_step(weights: torch.Tensor) -> None:
    for _ in range(10):
        torch.mm(weights, weights)


def _train(weights: torch.Tensor, seconds: float) -> float:
    steps, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        _train_step(weights)
        steps += 1
    return steps / spent
