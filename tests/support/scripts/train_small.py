"""A small training script for tests: every rank checks that all ranks hold the same state."""

import os
import sys
import time

import torch
import torch.distributed as dist

import spotelastic as se

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
STEP_TIME = float(sys.argv[2]) if len(sys.argv) > 2 else 0.02

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    step = checkpoint.restore()
    print(f"begins at {step} of {os.environ['WORLD_SIZE']}", flush=True)
    print(f"run id: {os.environ.get('SPOTELASTIC_RUN_ID')}", flush=True)
    while step < STEPS:
        torch.manual_seed(step)
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_TIME)
        step += 1
        checkpoint.log(lr=optimizer.param_groups[0]["lr"])
        checkpoint.step(step, loss=loss)

total = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum()
smallest, largest = total.clone(), total.clone()
dist.all_reduce(smallest, dist.ReduceOp.MIN)
dist.all_reduce(largest, dist.ReduceOp.MAX)
assert smallest == largest, "the ranks differ"
print(f"sum {total.item():.17g}", flush=True)
dist.destroy_process_group()
