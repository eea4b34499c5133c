"""Runs a script that is killed once, at a step of its optimizer, and counts the steps of each life.

    python dies_once.py FOLDER STEP SCRIPT

Each rank has a file for each of its lives, and adds a byte to it with each step of its optimizer:
one byte is there or not, whenever the process is killed. Rank 0 of the first life kills itself.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

FOLDER, FATAL, SCRIPT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank = os.environ.get("RANK", "0")
killed = FOLDER / "killed"
life = FOLDER / f"steps-{rank}-{os.getpid()}"
made = 0


def stepped(*_: object) -> None:
    global made
    made += 1
    with life.open("a") as steps:
        steps.write(".")
    if made == FATAL and rank == "0" and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(stepped)
sys.argv = [SCRIPT]
sys.path.insert(0, str(Path(SCRIPT).parent))
runpy.run_path(SCRIPT, run_name="__main__")
(FOLDER / f"ended-{rank}").touch()
