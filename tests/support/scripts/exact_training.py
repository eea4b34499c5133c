"""Trains with virtual ranks, dropout and a loader: `spotelastic run exact_training.py FOLDER`.

Of each step whose number is the name of a file in FOLDER, the rank that the file names is killed in
forward, once.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import spotelastic as se

SAMPLES, STEPS = 96, 12
"""The loader's epochs end in between."""


def kill(step: int) -> None:
    wanted = Path(sys.argv[1], str(step))
    if wanted.exists() and wanted.read_text() == os.environ["RANK"]:
        wanted.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


torch.distributed.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
rows = torch.arange(SAMPLES * 8.0).view(SAMPLES, 8).sin()
sampler = se.ElasticSampler(SAMPLES, 24, virtual_ranks=6)
loader = DataLoader(rows, batch_sampler=sampler)
state = {"model": model, "optimizer": optimizer, "data": sampler}
with se.Checkpointer(state, snapshot_every=2) as checkpoint:
    batches = checkpoint.batches(loader)
    for step in checkpoint.steps(STEPS):
        with step:
            batch = next(batches)
            optimizer.zero_grad()
            for micro in sampler.microbatches():
                kill(step.number)
                micro.loss = model(batch[micro.rows]).square().mean()
                (micro.loss * micro.weight).backward()
            optimizer.step()
