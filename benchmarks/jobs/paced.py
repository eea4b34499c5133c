"""A small training loop whose steps all take the same time, with the time of each.

Arguments: a folder, and the seconds of a step. Rank 0 appends lines to `<folder>/<pid>.steps`:
`<what> <epoch seconds> <world size> <step>`. `what` is born (the script begins) or step (that step
is done).
"""

import os
import sys
import time
from pathlib import Path

born = time.time()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import spotelastic as se  # noqa: E402

STEP = float(sys.argv[2])
world = os.environ["WORLD_SIZE"]
file = Path(sys.argv[1], f"{os.getpid()}-{born:.4f}.steps")


def tell(what: str, at: float, step: int) -> None:
    if os.environ["RANK"] == "0":
        with file.open("a") as lines:
            lines.write(f"{what} {at:.4f} {world} {step}\n")


dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    step = checkpoint.restore()
    tell("born", born, step)
    due = time.monotonic()
    while True:
        due = max(due + STEP, time.monotonic())
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, due - time.monotonic()))
        step += 1
        checkpoint.step(step, loss=loss)
        tell("step", time.time(), step)
