"""A training script that uses torch only, and records when its first all-reduce is done.

Argument: a folder. Each worker appends one line to `<folder>/<node>.lives`. All workers end
together once the file `<folder>/stop` exists.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
told = False
while True:
    stop = torch.tensor(float((folder / "stop").exists()))
    dist.all_reduce(stop)
    if not told:
        life = {
            "node": os.environ.get("NODE") or os.environ["SPOTELASTIC_NODE"],
            "pid": os.getpid(),
            "rank": dist.get_rank(),
            "world": dist.get_world_size(),
            "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
            "port": int(os.environ["MASTER_PORT"]),
        }
        with (folder / f"{life['node']}.lives").open("a") as file:
            file.write(json.dumps(life) + "\n")
        told = True
    if stop:
        break
    time.sleep(0.02)
dist.destroy_process_group()
