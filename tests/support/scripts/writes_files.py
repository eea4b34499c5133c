"""Trains, and writes files as scripts do: a log that grows, and the best state so far."""

import os
import sys
import time
from pathlib import Path

import torch

import spotelastic as se

STEPS, STEP_TIME = int(sys.argv[1]), float(sys.argv[2])
out = Path(os.environ["SPOTELASTIC_OUTPUT"])
notes = out / "notes.txt"
print(f"finds {notes.read_text().split() if notes.exists() else 'nothing'}", flush=True)
with notes.open("a") as file:
    file.write(f"{os.environ['SPOTELASTIC_NODE']}\n")

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
    step = checkpoint.restore()
    while step < STEPS:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_TIME)
        step += 1
        checkpoint.step(step)
        if step % 10 == 0 and step <= 100:  # the best state does not come all the time
            torch.save(model.state_dict(), out / "best.pt")
        Path("stray.txt").write_text(f"{step}")
        (out / "deep").mkdir(exist_ok=True)
        (out / "deep/last_step.txt").write_text(f"{step}")
