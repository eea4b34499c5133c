"""A small DDP training script for tests: prints where it began and what it ended as."""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se

ROWS = 12


def main() -> None:
    steps, storage = int(sys.argv[1]), sys.argv[2]
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "seen": 0}
    with se.Checkpointer(state, storage=storage, snapshot_every=1, checkpoint_every=2) as saved:
        begun = step = saved.restore()
        while step < steps:
            generator = torch.Generator().manual_seed(step)
            rows = torch.randn(ROWS, 8, generator=generator, dtype=torch.float64)[rank::world]
            loss = (model(rows).squeeze(1) - rows.sum(1)).square().sum() * world / ROWS
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            state["seen"] += ROWS
            saved.step(step, loss=loss)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    result = {
        "rank": rank,
        "begun": begun,
        "norm": weights.norm().item(),
        "digest": digest,
        "lr": optimizer.param_groups[0]["lr"],
        "seen": state["seen"],
    }
    print(json.dumps(result), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
