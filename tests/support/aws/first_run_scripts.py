"""Scripts that train on the nodes of a first run, and tell what these are like."""

FACTS = """
from support.processes.patience import PATIENT
import json, os, socket, subprocess

def tell(*command):
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT)
    told = (ended.stdout + ended.stderr)[-6000:]
    fact = {"node": socket.gethostname(), "command": " ".join(command), "output": told}
    print("FACT " + json.dumps(fact), flush=True)

if os.environ.get("LOCAL_RANK", "0") == "0":
    for command in COMMANDS:
        try:
            tell(*command)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"{command}: {error}", flush=True)
"""
OF_ALL = (
    ("ip", "addr"),
    ("ip", "rule"),
    ("ip", "route", "show", "table", "all"),
    ("lsblk",),
    ("df", "-h"),
    ("systemctl", "list-units", "--failed"),
    ("systemd-analyze", "blame"),
)
OF_GPUS = (
    ("nvidia-smi", "-q"),
    ("ls", "/opt/pytorch/bin/python"),
    ("ldconfig", "-p"),
    ("fi_info", "-p", "efa"),
)
TRAINS = """
import os, time, torch
import tabulate
import spotelastic as se
print("found", os.environ["FIRST_RUN_KEY"], tabulate.__version__, flush=True)
state = {"model": torch.nn.Linear(4, 4)}
with se.Checkpointer(state) as checkpoint:
    for step in range(checkpoint.restore() + 1, 100_000):
        time.sleep(0.1)
        checkpoint.step(step, loss=1.0)
"""
REDUCES = """
import time
began = time.time()
import torch, torch.distributed as dist
print(f"import torch {time.time() - began:.1f} s", flush=True)
print("torch", torch.__version__, "CUDA", torch.version.cuda, flush=True)
import spotelastic as se
dist.init_process_group("nccl")
device = torch.device("cuda", int(__import__("os").environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
print("NCCL", torch.cuda.nccl.version(), flush=True)
model = torch.nn.Linear(64, 64, device=device)
data = torch.ones(64 << 20, device=device)
with se.Checkpointer({"model": model}) as checkpoint:
    for step in range(checkpoint.restore() + 1, 100_000):
        began = time.time()
        dist.all_reduce(data)
        torch.cuda.synchronize()
        spent = time.time() - began
        if step % 50 == 0:
            print(f"all-reduce {data.nbytes / spent / 1e9:.2f} GB/s", flush=True)
        data.fill_(1)
        checkpoint.step(step, loss=1.0)
"""


def with_facts(script: str, *, gpus: bool = False) -> str:
    """The script, which first tells what its machine is like."""
    commands = (*OF_ALL, *OF_GPUS) if gpus else OF_ALL
    return f"COMMANDS = {commands!r}\n{FACTS}\n{script}"
