"""A training script that holds models sharded in each way, for a fixed number of ranks.

    python train_replicated.py FOLDER STEPS STEP_TIME KIND

KIND is one of `shardings.KINDS`. While there is a file FOLDER/stands, all ranks stay in the block
of the step that they are in. Each process appends "<step> <sum of the parameters before it>" to
FOLDER/<node>.steps, with all bits of the sum. Steps depend on the ranks and on the step alone, so
that a run that was interrupted has the same sums as one that was not.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.scripts.shardings import distribute
from torch import nn
from torch.distributed.tensor import DTensor

import spotelastic as se

HIDDEN = 48


def build(kind: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(32, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 4))
    model = distribute(model.double(), kind, dist.get_world_size())
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3)}


def total_of(model: nn.Module) -> float:
    """The sum of what all ranks hold."""
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    total = torch.stack([part.detach().sum() for part in parts]).sum()
    dist.all_reduce(total)
    return total.item()


def train(state: dict[str, Any], number: int, kind: str) -> torch.Tensor:
    """The same rows for all ranks of a model that they share as tensors, else rows of their own."""
    own = 0 if kind in ("tensor", "grid") else dist.get_rank()
    generator = torch.Generator().manual_seed(1000 * number + own)
    rows = torch.randn(8, 32, dtype=torch.float64, generator=generator)
    loss = (state["model"](rows) - rows[:, :4]).square().mean()
    loss.backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    return loss.detach()


def stands(folder: Path) -> bool:
    """The same on all ranks; a lost peer is found by this, too."""
    told = torch.tensor(float((folder / "stands").exists()))
    dist.all_reduce(told)
    return bool(told)


def main() -> None:
    folder, steps, step_time, kind = Path(sys.argv[1]), *map(float, sys.argv[2:4]), sys.argv[4]
    dist.init_process_group("gloo")
    file = folder / f"{os.environ['SPOTELASTIC_NODE']}.steps"
    state: dict[str, Any] = {}
    with se.Checkpointer(state, build=lambda: build(kind)) as checkpoint:
        for step in checkpoint.steps(int(steps)):
            with step:
                while stands(folder):
                    time.sleep(0.05)
                before = total_of(state["model"])
                step.loss = train(state, step.number, kind)
                time.sleep(step_time)
            if step.finished:
                with file.open("a") as out:
                    out.write(f"{step.number} {before.hex()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
