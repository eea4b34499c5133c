"""A training script for tests of in-place recovery: it writes down each step that counts.

    python train_in_place.py FOLDER STEPS STEP_TIME [GROUP_AT]

Each process makes a process group of its own at its first step from GROUP_AT on. No process can
take that to another round.

Whichever process finds FOLDER/<node>.hangs when it leaves a group takes it away, and never returns,
as with a driver that hangs.

Each process appends "<monotonic seconds> <step> <world> <pid> <sum of parameters>" to
FOLDER/<node>.steps. The loss is the mean over a global batch of 24 rows that depends on the step
alone, so that the parameters do not depend on how many ranks share it.
"""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import spotelastic as se

ROWS = 24

folder, steps, step_time = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
group_at = int(sys.argv[4]) if len(sys.argv) > 4 else 0
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).double()
)
time.sleep(float(os.environ.get("BUILD_TIME", "0")))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
own: Any = None
file = folder / f"{os.environ['SPOTELASTIC_NODE']}.steps"
leave = dist.destroy_process_group


def leave_or_hang(group: Any = None) -> None:
    with contextlib.suppress(FileNotFoundError):
        file.with_suffix(".hangs").unlink()
        threading.Event().wait()
    leave(group)


dist.destroy_process_group = leave_or_hang


def train(number: int) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(ROWS, 32, dtype=torch.float64, generator=generator)[rank::world]
    loss = (model(rows) - rows.sum(1, keepdim=True)).square().sum() * world / ROWS
    optimizer.zero_grad()
    loss.backward()
    time.sleep(step_time)
    optimizer.step()
    return loss.detach()


with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    for step in checkpoint.steps(steps):
        if (folder / "stop").exists() and step.number % 50 == 0:
            break
        if group_at and step.number >= group_at and own is None:
            own = dist.new_group()
        with step:
            step.loss = train(step.number)
        if step.finished:
            total = sum(parameter.detach().sum().item() for parameter in model.parameters())
            with file.open("a") as out:
                world, pid = dist.get_world_size(), os.getpid()
                out.write(f"{time.monotonic():.6f} {step.number} {world} {pid} {total:.12g}\n")
dist.destroy_process_group()
