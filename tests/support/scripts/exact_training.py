"""Trains with virtual ranks, dropout and a loader: `exact_training.py FOLDER [STEPS]`.

Of each step whose number is the name of a file in FOLDER, the rank that the file names is killed in
forward, once. On the node that a file `sick` names, a bit of a weight is flipped, once. While there
is a file `slowly`, a step takes half a second. With the variable SHARDED the model is sharded.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import spotelastic as se

SAMPLES = 96
"""Of an epoch, which has four steps."""
FOLDER, STEPS = Path(sys.argv[1]), int((*sys.argv[2:], "12")[0])


def is_disturbed(step: int) -> None:
    wanted = FOLDER / str(step)
    if wanted.exists() and wanted.read_text() == os.environ["RANK"]:
        wanted.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    sick = FOLDER / "sick"
    if sick.exists() and sick.read_text() == os.environ["SPOTELASTIC_NODE"]:
        sick.unlink()
        next(model.parameters()).data.view(torch.int32)[0, 0] ^= 1 << 20
    if (FOLDER / "slowly").exists():
        time.sleep(0.5)


torch.distributed.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
if "SHARDED" in os.environ:
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
rows = torch.arange(SAMPLES * 8.0).view(SAMPLES, 8).sin()
sampler = se.ElasticSampler(SAMPLES, 24, virtual_ranks=6)
loader: Any = DataLoader(rows, batch_sampler=sampler)  # type: ignore[arg-type]  # it has items
state = {"model": model, "optimizer": optimizer, "data": sampler}
with se.Checkpointer(state) as checkpoint:
    batches = checkpoint.batches(loader)
    for step in checkpoint.steps(STEPS):
        with step:
            batch = next(batches)
            is_disturbed(step.number)
            optimizer.zero_grad()
            for micro in sampler.microbatches():
                micro.loss = model(batch[micro.rows]).square().mean()
                (micro.loss * micro.weight).backward()
            optimizer.step()
