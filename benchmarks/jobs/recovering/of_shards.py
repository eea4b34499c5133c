"""The job under `spotelastic run`, in place, whose state is large and sharded over the ranks.

Each step changes all of it. It needs no other computing, which would take the cores from what is
measured.
"""

import os
import sys
import time
from typing import Any

import work

options = work.options()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import spotelastic as se  # noqa: E402

ROWS, COLUMNS = 512, 8192
"""Of a tensor of float32 of 16 MiB."""

torch.set_num_threads(1)
dist.init_process_group(options.backend)
pauses = work.pauses(options)
state: dict[str, Any] = {}


def build() -> dict[str, Any]:
    world, group = int(os.environ["WORLD_SIZE"]), os.environ["SPOTELASTIC_ROUND"]
    work.tell("building", world, 0, group)
    count = max(1, options.mib * 2**20 // (ROWS * COLUMNS * 4))
    with torch.device("meta"):
        model = torch.nn.Sequential(
            *(torch.nn.Linear(COLUMNS, ROWS, bias=False) for _ in range(count))
        )
    fully_shard(model)
    model.to_empty(device=options.device)
    with torch.no_grad():
        for part in model.parameters():
            part.to_local().zero_()
    work.tell("built", world, 0, group)
    return {"model": model}


with se.Checkpointer(state, build=build) as checkpoint:
    for step in checkpoint.steps(sys.maxsize):
        pause = next(pauses)
        with step:
            time.sleep(pause)
            number = torch.tensor([float(step.number)], device=options.device)
            dist.all_reduce(number, op=dist.ReduceOp.MAX)
            step.loss = number[0]
            with torch.no_grad():
                for part in state["model"].parameters():
                    part.to_local().fill_(number.item())
        if step.finished:
            world, group = int(os.environ["WORLD_SIZE"]), os.environ["SPOTELASTIC_ROUND"]
            work.tell("step", world, step.number, group)
