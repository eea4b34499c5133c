"""Forks groups of ranks from one process that has imported torch, so that importing costs once.

A script calls `run(world_size, function, *arguments)`. Every rank is a process with torchrun's
variables and a gloo group. The parent must not have started threads.
"""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which each rank would import with its first optimizer
import torch.distributed as dist
from support.processes.patience import PATIENT


def run(
    world: int, function: Callable[..., None], *arguments: Any, within: float = PATIENT
) -> None:
    """Returns when all ranks have ended well; ends the script when one has not."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "store"
        ranks = [_fork(rank, world, meeting, function, arguments) for rank in range(world)]
        if not _all_ended_well(ranks, time.monotonic() + within):
            sys.exit(f"{function.__name__}: a rank of {world} failed")


def _fork(
    rank: int, world: int, meeting: Path, function: Callable[..., None], arguments: Any
) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
        )
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
        )
        function(rank, world, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        code = 0
    except BaseException:
        print(f"rank {rank} of {world}:", file=sys.stderr)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _all_ended_well(ranks: list[int], deadline: float) -> bool:
    """The first that fails takes the others along."""
    running = set(ranks)
    while running:
        for child in list(running):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                running.discard(child)
                if status:
                    return _kill(running)
        if time.monotonic() > deadline:
            print("out of time", file=sys.stderr)
            return _kill(running)
        time.sleep(0.01)
    return True


def _kill(running: set[int]) -> bool:
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return False
