"""Runs what several ranks do together, in processes that are forked and talk through pipes.

Ranks tell each other things by `Ranks.gather` alone. Tensors are sharded as in a world of that
size, whose collectives do nothing: so a world costs no more than to fork its ranks.
"""

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotelastic.training.runtime.session import Ranks

T = TypeVar("T")
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class _PipedRanks(Ranks):
    pipe: Connection | None = None

    def gather(self, value: T) -> list[T]:
        assert self.pipe is not None
        self.pipe.send(("told", value))
        found: list[T] = self.pipe.recv()
        return found


def together(world: int, live: Callable[[Ranks], T]) -> list[T]:
    """Return what `live` returns for each rank."""
    pipes, processes = [], []
    for rank in range(world):
        here, there = _FORK.Pipe()
        process = _FORK.Process(target=_live, args=(there, rank, world, live))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        while True:
            words, values = zip(*(pipe.recv() for pipe in pipes), strict=True)
            failed = [value for word, value in zip(words, values, strict=True) if word == "failed"]
            assert not failed, failed[0]
            assert len(set(words)) == 1, "some ranks have ended, and others wait for them"
            if words[0] == "done":
                return list(values)
            for pipe in pipes:
                pipe.send(list(values))
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()


def _live(pipe: Connection, rank: int, world: int, live: Callable[[Ranks], Any]) -> None:
    try:
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        pipe.send(("done", live(_PipedRanks(rank, world, rank, "n", "all", pipe=pipe))))
    except BaseException:
        pipe.send(("failed", f"rank {rank}: {traceback.format_exc()}"))
