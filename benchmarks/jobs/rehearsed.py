"""A script whose steps are rehearsed, or not: `rehearsed.py on|off STEPS PAUSE RESULT`.

The first rank writes RESULT: by step the number of times that its block was made, and the seconds
from the first step's end until the end of the 10th and of the last.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import spotelastic as se

mode, steps, pause, result = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 1)))
optimizer = torch.optim.AdamW(model.parameters())
blocks: Counter[int] = Counter()
at: dict[int, float] = {}
with se.Checkpointer({"model": model, "optimizer": optimizer}, rehearse=mode == "on") as checkpoint:
    for step in checkpoint.steps(steps):
        with step:
            blocks[step.number] += 1
            loss = model(torch.randn(16, 512)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            time.sleep(pause)
            optimizer.step()
        if step.finished:
            at[step.number] = time.perf_counter()
if dist.get_rank() == 0:
    again = {number: made for number, made in blocks.items() if made > 1}
    seconds = at[10] - at[1], at[steps] - at[10]
    result.write_text(json.dumps({"again": again, "start": seconds[0], "later": seconds[1]}))
