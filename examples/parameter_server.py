"""Trains a small model of the bytes of Python's standard library by a parameter server.

    python examples/parameter_server.py --windows 4
    spotelastic run --standalone --nproc-per-node 4 examples/parameter_server.py --mode asynchronous
    spotelastic up --local --min 3 --max 4 examples/parameter_server.py --batches 4

Rank 0 serves the parameters, rank 1 stands by, and the others push gradients and pull parameters.
If the server's node is lost, the standby goes on: no update that a worker knows of is lost.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import spotelastic as se

ROWS, CONTEXT, WIDTH = 256, 16, 64


def read_text() -> Tensor:
    """Return all top-level modules of the standard library, one after the other."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def make_model() -> nn.Module:
    """Return a model that predicts a byte from the bytes before it."""
    return nn.Sequential(
        nn.Embedding(256, WIDTH),
        nn.Flatten(),
        nn.Linear(CONTEXT * WIDTH, 256),
        nn.GELU(),
        nn.LayerNorm(256),
        nn.Linear(256, 256),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="synchronous", help="synchronous, bounded, asynchronous")
    parser.add_argument("--staleness", type=int, help="updates, with --mode bounded")
    parser.add_argument("--batches", type=int, help="of each update, with --mode synchronous")
    parser.add_argument("--updates", type=int, default=50, help="between two meetings of all ranks")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()

    if "RANK" in os.environ:  # under spotelastic or torchrun
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = read_text()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)

    def loss_of(model: nn.Module, batch: int) -> Tensor:
        """Return the loss of a batch, which its number says all about."""
        generator = torch.Generator().manual_seed(batch)
        starts = torch.randint(len(text) - CONTEXT - 1, (ROWS, 1), generator=generator)
        rows = text[starts + torch.arange(CONTEXT + 1)].long()
        return F.cross_entropy(model(rows[:, :-1]), rows[:, -1])

    server = se.parameter_server.ParameterServer(
        model,
        optimizer,
        loss_of,
        mode=options.mode,
        updates=options.updates,
        batches=options.batches,
        staleness=options.staleness,
    )
    with se.Checkpointer({"server": server.state}) as checkpoint:
        for step in checkpoint.steps(options.windows):
            with step:  # goes on among those that are left, if a node is lost in it
                step.loss = server.window(step)
            if step.finished and step.loss is not None:  # on the rank that serves
                print(f"window {step.number:3d}  loss {step.loss:.4f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
