"""A worker script with one replicated and one FSDP model of some MiB, to count the bytes that are
read.

`python -m support.scripts.large_parts FOLDER STEP WORLD`: every rank, each on its own node,
restores STEP, checks it, and saves the next. Its environment is in FOLDER.
"""

import json
import os
import sys
from pathlib import Path

import support.training.forked
import torch
from support.scripts.shardings import distribute
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se

REPLICATED = 512 * 512 * 4
SHARDED = 4 * 1024 * 1024 * 4
"""Bytes."""


def value(step: int) -> float:
    """Of every parameter after a step."""
    return step + 0.5


def live(rank: int, world: int, folder: Path, step: int) -> None:
    os.environ.update(json.loads((folder / f"environment-{rank}.json").read_text()))
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    layers = [nn.Linear(1024, 1024, bias=False) for _ in range(4)]
    state = {
        "replicated": DistributedDataParallel(nn.Linear(512, 512, bias=False)),
        "sharded": distribute(nn.Sequential(*layers), "fsdp", world),
    }
    parameters = [parameter for model in state.values() for parameter in model.parameters()]
    with se.Checkpointer(state) as checkpoint, torch.no_grad():
        assert checkpoint.restore() == step
        for parameter in parameters:
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            assert not step or (whole == value(step)).all()
            parameter.fill_(value(step + 1))
        checkpoint.step(step + 1)


if __name__ == "__main__":
    support.training.forked.run(int(sys.argv[3]), live, Path(sys.argv[1]), int(sys.argv[2]))
