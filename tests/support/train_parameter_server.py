"""A training script for tests of the parameter server, which counts how often each batch counts.

    python train_parameter_server.py FOLDER MODE WINDOWS UPDATES PACE

The model has a number for each batch of the run, 0 at first. The update of a batch adds 1 to it. So
at the end all are 1 if each batch was part of one update, whatever the order was.

Each worker appends the batches that were acknowledged to it to FOLDER/<node>.acknowledged, and at
the end each process writes FOLDER/<node>.marks: the numbers.

A process that finds FOLDER/<node>.dies with "<place> <count>" kills itself at that place, when it
comes there so often: `send` and `head` of a message, before and `after` them, `apply` of an update,
`pack`, `unpack` and `keep` of the state, `compute` of a batch.
"""

import functools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import spotelastic as se
from spotelastic.training.parameter_server.link import Link
from spotelastic.training.parameter_server.served_state import ServedState

BATCHES = {"synchronous": 4, "bounded": None, "asynchronous": None}
STALENESS = {"synchronous": None, "bounded": 3, "asynchronous": None}

folder, mode = Path(sys.argv[1]), sys.argv[2]
windows, updates, pace = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
file = folder / os.environ.get("SPOTELASTIC_NODE", "alone")
came: Counter[str] = Counter()


def reached(place: str) -> None:
    """Kill this process if a test asked for it here."""
    came[place] += 1
    asked = file.with_suffix(".dies")
    if asked.exists():
        where, _, count = asked.read_text().partition(" ")
        if where == place and came[place] >= int(count):
            asked.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def watched(owner: Any, name: str, place: str) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(method)
    def around(*args: Any, **more: Any) -> Any:
        reached(place)
        found = method(*args, **more)
        reached(f"after-{place}")
        return found

    setattr(owner, name, around)


watched(Link, "send", "send")
watched(Link, "head", "head")
watched(ServedState, "apply", "apply")
watched(ServedState, "packed", "pack")
watched(ServedState, "unpack", "unpack")
watched(ServedState, "keep", "keep")


class Marks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.marks = nn.Parameter(torch.zeros(windows * updates * (BATCHES[mode] or 1)))


def loss_of(model: nn.Module, batch: int) -> torch.Tensor:
    reached("compute")
    time.sleep(pace)
    return -model.marks[batch]


def acknowledged(batch: int) -> None:
    with file.with_suffix(".acknowledged").open("a") as out:
        out.write(f"{batch}\n")


if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = Marks()
server = se.ParameterServer(
    model,
    torch.optim.SGD(model.parameters(), lr=float(BATCHES[mode] or 1)),
    loss_of,
    mode=mode,
    updates=updates,
    batches=BATCHES[mode],
    staleness=STALENESS[mode],
    acknowledged=acknowledged,
)
with se.Checkpointer({"server": server.state}) as checkpoint:
    for step in checkpoint.steps(windows):
        with step:
            step.loss = server.window(step)
        if step.finished:
            with file.with_suffix(".windows").open("a") as out:
                out.write(f"{step.number} {os.getpid()} {dist.get_rank()}\n")
file.with_suffix(".marks").write_text(json.dumps(model.marks.tolist()))
dist.destroy_process_group()
