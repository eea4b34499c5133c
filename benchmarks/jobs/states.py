"""The states that are saved and restored, and what one copy of them takes."""

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """A state: so many bytes in so many float32 tensors, of which every tenth is ten times larger
    than the others."""

    nbytes: int
    tensors: int

    def make(self, seed: int = 0) -> State:
        return dict(self.made(seed))

    def made(self, seed: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
        """One after the other, where there is no memory for another state."""
        generator = torch.Generator().manual_seed(seed)
        weights = [10 if number % 10 == 0 else 1 for number in range(self.tensors)]
        unit = self.nbytes // 4 // sum(weights)
        for number, weight in enumerate(weights):
            yield f"layer{number}.weight", torch.rand(unit * weight, generator=generator)


@dataclass(frozen=True, slots=True)
class Saves:
    """Of one process that saved several times, each until committed."""

    copies: tuple[float, ...]
    """A warm copy of the state in memory just before each save."""
    stalls: tuple[float, ...]
    committed: tuple[float, ...]
    """Until the save could be loaded by anybody."""
    cpu: float = 0.0
    """The daemon's, per GiB saved."""
    own_memory: int = 0
    """The daemon's peak, without the slots."""

    @property
    def copy(self) -> float:
        return min(self.copies[1:])

    @property
    def steady(self) -> float:
        return min(self.stalls[1:])

    @property
    def until_committed(self) -> float:
        """The best of the saves but the first."""
        return min(self.committed[1:])


class WarmCopy:
    """Of a state, in memory that has been written before."""

    def __init__(self, state: State) -> None:
        self._sources = list(state.values())
        self._targets = [tensor.clone() for tensor in self._sources]

    def seconds(self) -> float:
        begun = time.perf_counter()
        torch._foreach_copy_(self._targets, self._sources)
        return time.perf_counter() - begun


def from_shared_memory(nbytes: int) -> tuple[float, float]:
    """What the kernel takes for a copy out of a file in shared memory: read, and mapped."""
    target = torch.zeros(nbytes, dtype=torch.uint8)
    memory, piece = memoryview(target.numpy()), 8 << 20
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
