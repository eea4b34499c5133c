"""Measures restores from memory: from the node's own slots, and from other nodes."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs.node import Crash, Node, node
from jobs.states import Shape, State, WarmCopy, from_shared_memory
from spotelastic_checkpoints.types import Holder, Resume, Snapshot

import spotelastic as se


@dataclass(frozen=True, slots=True)
class InPlace:
    """A restart in place, beside its parts, in seconds."""

    copy: float
    """One warm copy of the state."""
    read: float
    """One copy of the same bytes from a file in shared memory, by the kernel, with a thread per
    core."""
    mapped: float
    """One copy of the same bytes from a fresh map of that file."""
    restore: float


def restore_from_slots(shape: Shape) -> InPlace:
    state = shape.make()
    with tempfile.TemporaryDirectory() as storage, node(storage, slots=1) as here:
        snapshot = _seal(here, "r1", state)
        resume = Resume("memory", 2, "r1", snapshot.layout)
        times, copies, warm = [], [], WarmCopy(state)
        for number in range(6):
            here.begin(f"r{number + 2}", resume=resume)
            copies.append(warm.seconds())
            times.append(_restored(state))
        del warm
    return InPlace(min(copies), *from_shared_memory(shape.nbytes), min(times))


@dataclass(frozen=True, slots=True)
class FromPeers:
    """A newcomer that is filled by two nodes which hold the same state."""

    seconds: float
    memory: int
    """The most memory that it took meanwhile: shared memory and its daemon's own."""
    slots: int
    """Memory of the slots that it will need to train, at least two per worker."""
    store_touched: bool


def restore_from_peers(shape: Shape) -> FromPeers:
    state = shape.make()
    with (
        tempfile.TemporaryDirectory() as storage,
        node(storage, slots=1) as one,
        node(storage, name="n1", slots=1) as other,
    ):
        snapshots = []
        for holder in (one, other):
            holder.name = "n0"
            snapshots.append(_seal(holder, "r1", state))
        holders = tuple(
            Holder(name, holder.client.status().listen, (0,))
            for name, holder in (("n0", one), ("n1", other))
        )
        resume = Resume("memory", 2, "r1", snapshots[0].layout, holders)
        times, memory = [], 0
        for _ in range(3):
            with node(storage, name="n2") as newcomer, _peak(newcomer) as peak:
                newcomer.begin("r2", resume=resume)
                times.append(_restored(state))
            memory = max(memory, *peak)
        return FromPeers(min(times), memory, 2 * shape.nbytes, any(Path(storage).iterdir()))


@contextlib.contextmanager
def _peak(here: Node) -> Iterator[list[int]]:
    """Sample the memory that a node takes, besides its workers."""
    samples, over = [0], threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(FileNotFoundError):
                samples.append(here.memory() + here.shared_memory())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _seal(here: Node, round_: str, state: State) -> Snapshot:
    """Seal step 2 in the node's slots; the worker then dies."""
    here.begin(round_)
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        here.make_ready(checkpoint)
        checkpoint.step(2)
        raise Crash
    return here.client.status().snapshots[-1]


def _restored(state: State) -> float:
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        begun = time.perf_counter()
        if checkpoint.restore() != 2:
            raise RuntimeError("not what was saved")
        seconds = time.perf_counter() - begun
        raise Crash
    return seconds
