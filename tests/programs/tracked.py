"""Logs each step to a tracker; rank 0 is killed once, two steps after a save.

tracked.py TRACKER FOLDER
"""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import spotelastic as se
from spotelastic.integrations.tracking import Tracker

STEPS, EVERY, DIES_AT = 10, 4, 6


GUIDE = Path(__file__).parents[2] / "docs/how-to/experiment-trackers.md"


def tracker_of(name: str) -> Any:
    """The class that the guide has for a tracker."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    [recipe] = [block for block in blocks if f"class {name}(Tracker)" in block]
    found: dict[str, Any] = {"Tracker": Tracker}
    exec(compile(recipe, GUIDE, "exec"), found)
    return found[name]


def main(name: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    died = folder / "died"
    state = {"model": model, "optimizer": optimizer}
    with se.Checkpointer(state) as checkpoint, tracker_of(name)(checkpoint) as tracker:
        assert checkpoint.run_id == os.environ["SPOTELASTIC_RUN_ID"]
        for step in range(checkpoint.restore() + 1, STEPS + 1):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).square().mean()
            loss.backward()
            optimizer.step()
            checkpoint.step(step)
            if step % EVERY == 0:
                checkpoint.wait()
            if dist.get_rank() == 0:
                with (folder / "made.txt").open("a") as made:
                    made.write(f"{checkpoint.run_id} {step}\n")
            tracker.log({"loss": loss.item(), "half": loss.item() / 2}, step)
            dist.barrier()
            if step == DIES_AT and dist.get_rank() == 0 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
