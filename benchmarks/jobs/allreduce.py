"""The smallest training loop: one all-reduce every 10 ms, with the time of each.

Argument: a folder. Each worker appends lines to `<folder>/<NODE>.steps`: `<what> <monotonic
seconds> <pid> <world size>`. `what` is born (Python has reached the script), imported, joined (the
process group), or step (an all-reduce is done).
"""

import os
import sys
import time

output = os.open(
    f"{sys.argv[1]}/{os.environ['NODE']}.steps", os.O_CREAT | os.O_APPEND | os.O_WRONLY
)
world = os.environ["WORLD_SIZE"]


def tell(what: str) -> None:
    os.write(output, f"{what} {time.monotonic():.4f} {os.getpid()} {world}\n".encode())


tell("born")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

tell("imported")
dist.init_process_group("gloo")
tell("joined")
value = torch.ones(1)
while True:
    dist.all_reduce(value, dist.ReduceOp.MAX)
    tell("step")
    time.sleep(0.01)
