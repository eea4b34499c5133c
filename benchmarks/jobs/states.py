"""Makes the states that benchmarks save and restore, and measures one copy of them."""

import mmap
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """A state: that many bytes in that many float32 tensors, of which every tenth is ten times
    larger."""

    nbytes: int
    tensors: int

    def make(self, seed: int = 0) -> State:
        return dict(self.made(seed))

    def made(self, seed: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
        """Make the tensors one by one, if there is no memory for another state."""
        generator = torch.Generator().manual_seed(seed)
        weights = [10 if number % 10 == 0 else 1 for number in range(self.tensors)]
        unit = self.nbytes // 4 // sum(weights)
        for number, weight in enumerate(weights):
            yield f"layer{number}.weight", torch.rand(unit * weight, generator=generator)


@dataclass(frozen=True, slots=True)
class Saves:
    """One process that saved several times, each time until committed."""

    copies: tuple[float, ...]
    """Seconds of a warm copy of the state in memory just before each save."""
    stalls: tuple[float, ...]
    committed: tuple[float, ...]
    """Seconds until each save could be loaded by any process."""
    cpu: float = 0.0
    """CPU seconds of the daemon per GiB saved."""
    own_memory: int = 0
    """Peak memory of the daemon, without the slots."""

    @property
    def copy(self) -> float:
        return min(self.copies[1:])

    @property
    def steady(self) -> float:
        return min(self.stalls[1:])

    @property
    def until_committed(self) -> float:
        """Return the best of the saves except the first."""
        return min(self.committed[1:])


class WarmCopy:
    """A copy of a state in memory that was written before.

    It is made in parts of a GiB, one over the other, as a second state does not always fit.
    """

    PART = 1 << 30

    def __init__(self, state: State) -> None:
        self._parts = []
        pool = defaultdict[int, list[torch.Tensor]](list)
        for sources in _parts(state, self.PART):
            taken, targets = Counter[int](), []
            for source in sources:
                alike = pool[source.numel()]
                if taken[source.numel()] == len(alike):
                    alike.append(source.clone())
                targets.append(alike[taken[source.numel()]])
                taken[source.numel()] += 1
            self._parts.append((targets, sources))

    def seconds(self) -> float:
        begun = time.perf_counter()
        for targets, sources in self._parts:
            torch._foreach_copy_(targets, sources)
        return time.perf_counter() - begun


def _parts(state: State, most: int) -> list[list[torch.Tensor]]:
    parts: list[list[torch.Tensor]] = [[]]
    nbytes = 0
    for tensor in state.values():
        if parts[-1] and nbytes + tensor.nbytes > most:
            parts.append([])
            nbytes = 0
        parts[-1].append(tensor)
        nbytes += tensor.nbytes
    return parts


def from_shared_memory(nbytes: int) -> tuple[float, float]:
    """Return the seconds of a copy from a file in shared memory: by read, and by mmap."""
    target = torch.zeros(nbytes, dtype=torch.uint8)
    memory, piece = memoryview(target.numpy().data), 8 << 20
    reads, maps = [], []
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(memory)
        file.flush()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in range(5):
                begun = time.perf_counter()
                list(
                    pool.map(
                        lambda start: os.preadv(file.fileno(), [memory[start:][:piece]], start),
                        range(0, nbytes, piece),
                    )
                )
                reads.append(time.perf_counter() - begun)
        for _ in range(5):
            begun = time.perf_counter()
            with mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY) as mapped:
                source = torch.frombuffer(mapped, dtype=torch.uint8)
                target.copy_(source)
                maps.append(time.perf_counter() - begun)
                del source
    return min(reads), min(maps)
