"""The job under `spotelastic run`, in place (`--loop steps`) or by new processes (`restore`)."""

import os
import sys

import work

options = work.options()

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import spotelastic as se  # noqa: E402

dist.init_process_group(options.backend)
plain, optimizer = work.build(options.build, compiles=options.compile)
model = DistributedDataParallel(plain)
pauses = work.pauses(options)


def tell(step: int) -> None:
    work.tell("step", int(os.environ["WORLD_SIZE"]), step, os.environ["SPOTELASTIC_ROUND"])


with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    if options.loop == "steps":
        for step in checkpoint.steps(sys.maxsize):
            pause = next(pauses)
            with step:
                step.loss = work.train(model, optimizer, pause)
                tell(step.number)
    else:
        number = checkpoint.restore()
        while True:
            loss = work.train(model, optimizer, next(pauses))
            number += 1
            tell(number)
            checkpoint.step(number, loss=loss)
