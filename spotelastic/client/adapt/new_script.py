"""Writes a small script that trains, to begin with."""

from pathlib import Path

from spotelastic.errors import UsageError

TEXT = '''\
"""Trains a small network, and goes on where it ended, with any number of workers.

    spotelastic run --standalone --nproc-per-node 2 {name}
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)

    # Your data. The sampler deals them out to however many workers there are.
    x = torch.rand(2048, 1) * 6
    data = TensorDataset(x, torch.sin(x))
    sampler = se.ElasticSampler(data, global_batch=64)
    loader = DataLoader(data, batch_sampler=sampler)

    # Your model.
    layers = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    state = {{"model": model, "optimizer": optimizer, "sampler": sampler}}
    with se.Checkpointer(state) as checkpoint:
        batches = checkpoint.batches(loader)
        for step in checkpoint.steps(options.epochs * len(sampler)):  # those that are left
            with step:  # comes again, if a node is lost in it
                rows, targets = (part.to(device) for part in next(batches))
                loss = nn.functional.mse_loss(model(rows), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step.loss = loss
            if step.finished and step.number % 16 == 0 and dist.get_rank() == 0:
                print(f"step {{step.number}} loss {{loss.item():.4f}}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def write_new(path: Path) -> None:
    """Write the script. Raises `UsageError` if there is a file of that name."""
    if path.suffix != ".py":
        raise UsageError(f"{path}: the name of a script ends with .py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEXT.format(name=path.as_posix()))
    except FileExistsError:
        raise UsageError(
            f"{path} is there already: give another name, or make it elastic with "
            f"`spotelastic adapt {path}`"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
