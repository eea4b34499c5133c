"""A training script whose model is sharded over the ranks, and made anew for each round.

    python train_built.py FOLDER STEPS STEP_TIME

Each process appends "<monotonic seconds> <step> <world> <pid> <sum of parameters before the step>"
to FOLDER/<node>.steps. The loss is the mean over a global batch that depends on the step alone, so
that the parameters do not depend on how many ranks share it.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import spotelastic as se

ROWS = 24

folder, steps, step_time = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
file = folder / f"{os.environ['SPOTELASTIC_NODE']}.steps"
state: dict[str, Any] = {}


def build() -> dict[str, Any]:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    fully_shard(model[0])
    fully_shard(model)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3)}


def train(model: Any, optimizer: torch.optim.Optimizer, number: int) -> tuple[torch.Tensor, float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    total = sum(part.to_local().detach().sum() for part in model.parameters())
    assert isinstance(total, torch.Tensor)
    dist.all_reduce(total)
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(ROWS, 32, dtype=torch.float64, generator=generator)[rank::world]
    loss = (model(rows) - rows.sum(1, keepdim=True)).square().sum() * world / ROWS
    loss.backward()
    time.sleep(step_time)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), total.item()


with se.Checkpointer(state, build=build) as checkpoint:
    for step in checkpoint.steps(steps):
        with step:
            step.loss, before = train(state["model"], state["optimizer"], step.number)
        if step.finished:
            world, pid = dist.get_world_size(), os.getpid()
            with file.open("a") as out:
                out.write(f"{time.monotonic():.6f} {step.number} {world} {pid} {before:.12g}\n")
dist.destroy_process_group()
