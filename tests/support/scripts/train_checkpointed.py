"""A small DDP training script for tests; every rank writes where it began and its final state.

FOLDER STORAGE WORLD:STEPS... runs the worlds in turn, each up to that step.
"""

import hashlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import support.training.forked
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import spotelastic as se

ROWS, BATCH = 30, 8
"""An epoch is three whole batches and one of six."""


def train(rank: int, world: int, folder: Path, storage: str, steps: int) -> None:
    torch.manual_seed(0)
    rows: Any = torch.randn(ROWS, 8, dtype=torch.float64)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    sampler = se.ElasticSampler(ROWS, BATCH, seed=4)
    loader: DataLoader[torch.Tensor] = DataLoader(rows, batch_sampler=sampler)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": sampler}
    with se.Checkpointer(state, storage=storage, snapshot_every=1, checkpoint_every=2) as saved:
        begun = step = saved.restore()
        while step < steps:
            for share in loader:
                for micro in se.microbatches(sampler.batch, 2):
                    part = share[micro.rows]
                    with nullcontext() if micro.last else model.no_sync():
                        loss = (model(part).squeeze(1) - part.sum(1)).square().mean()
                        (loss * micro.weight).backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                step += 1
                saved.step(step, loss=loss)
                if step == steps:
                    break
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    result = {
        "begun": begun,
        "norm": weights.norm().item(),
        "digest": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
        "lr": optimizer.param_groups[0]["lr"],
        "data": sampler.state_dict(),
    }
    (folder / f"{steps}-{rank}.json").write_text(json.dumps(result))


def main() -> None:
    folder, storage = Path(sys.argv[1]), sys.argv[2]
    for world, steps in (map(int, turn.split(":")) for turn in sys.argv[3:]):
        support.training.forked.run(world, train, folder, storage, steps)


if __name__ == "__main__":
    main()
