"""A training script for tests of the parameter server, which counts how often each batch counts.

    python train_parameter_server.py FOLDER MODE WINDOWS UPDATES PACE

The model has a number for each batch of the run, 0 at first. The update of a batch adds 1 to it. So
at the end all are 1 if each batch was part of one update, whatever the order was. It has a small
network, too, which is trained beside that.

Each worker appends the batches that were acknowledged to it to FOLDER/<node>.acknowledged, each
process "<window> <rank> <pid>" of a finished window to FOLDER/<node>.windows, and at the end all of
the model's numbers to FOLDER/<node>.end, as {"marks": [...], "network": [...]}.

FOLDER/dies may have "<place> <rank> <count>": the process of this rank kills itself when it is at
this place as often, once. Places are `send`, `head`, `apply`, `packed`, `unpack` and `keep`, which
are methods of a link and of the state, and `after-send` and so on; and `compute`.
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

folder = Path(sys.argv[1])
mode: Any = sys.argv[2]
windows, updates, pace = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
batches = BATCHES[mode] or 1
file = folder / os.environ.get("SPOTELASTIC_NODE", "alone")
came: Counter[tuple[str, int]] = Counter()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def reached(place: str) -> None:
    """Kill this process if a test asked for it here."""
    came[place, rank()] += 1
    try:
        where, which, count = (folder / "dies").read_text().split()
        if (where, int(which)) == (place, rank()) and came[place, rank()] >= int(count):
            (folder / "dies").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    except FileNotFoundError:
        pass  # nobody is to die, or another process has


def watched(owner: Any, name: str) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(method)
    def around(*args: Any, **more: Any) -> Any:
        reached(name)
        found = method(*args, **more)
        reached(f"after-{name}")
        return found

    setattr(owner, name, around)


for owner, names in (
    (Link, ("send", "head")),
    (ServedState, ("apply", "packed", "unpack", "keep")),
):
    for name in names:
        watched(owner, name)


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.marks = nn.Parameter(torch.zeros(windows * updates * batches))
        self.network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(model: nn.Module, batch: int) -> torch.Tensor:
    reached("compute")
    time.sleep(pace / batches)
    assert isinstance(model, Marked)
    rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(batch))
    error = (model.network(rows) - rows.sum(1, keepdim=True)).square().mean()
    return error - model.marks[batch]


def acknowledged(batch: int) -> None:
    with file.with_suffix(".acknowledged").open("a") as out:
        out.write(f"{batch}\n")


if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = Marked()
optimizer = torch.optim.SGD(
    [
        {"params": [model.marks], "lr": float(batches)},
        {"params": model.network.parameters(), "lr": 0.01, "momentum": 0.9},
    ]
)
server = se.parameter_server.ParameterServer(
    model,
    optimizer,
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
                out.write(f"{step.number} {rank()} {os.getpid()}\n")
network = [each for part in model.network.parameters() for each in part.flatten().tolist()]
end = {"marks": model.marks.tolist(), "network": network}
file.with_suffix(".end").write_text(json.dumps(end))
if dist.is_initialized():
    dist.destroy_process_group()
