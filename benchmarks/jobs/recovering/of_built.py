"""The job under `spotelastic run`, in place, with a model that is sharded by FSDP2 (`build=`)."""

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

torch.set_num_threads(1)
dist.init_process_group(options.backend)
time.sleep(options.build)  # what is loaded once for each process
pauses = work.pauses(options)
state: dict[str, Any] = {}


def build() -> dict[str, Any]:
    world, group = int(os.environ["WORLD_SIZE"]), os.environ["SPOTELASTIC_ROUND"]
    work.tell("building", world, 0, group)
    torch.manual_seed(0)
    model = work.layers()
    for part in model:
        if isinstance(part, torch.nn.Linear):
            fully_shard(part)
    fully_shard(model)
    if options.compile:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    work.tell("built", world, 0, group)
    return {"model": model, "optimizer": optimizer}


with se.Checkpointer(state, build=build) as checkpoint:
    for step in checkpoint.steps(sys.maxsize):
        pause = next(pauses)
        with step:
            step.loss = work.train(state["model"], state["optimizer"], pause)
            world, group = int(os.environ["WORLD_SIZE"]), os.environ["SPOTELASTIC_ROUND"]
            work.tell("step", world, step.number, group)
