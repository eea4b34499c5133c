"""Trains on a device while workers leave a round in the middle of a step: the same on CPU and GPU.

Two ranks share a GPU.
"""

import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.in_place.resting_agent import Agent, Case, Plan, Script, Worker, run
from support.training.devices import share_a_gpu
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers
from spotelastic.training.in_place.groups import groups
from spotelastic.training.in_place.memory import measured

STEPS, LEAVES_IN = 8, (3, 4, 6)
WITHIN, LOOK_EVERY = 60.0, 0.005
WITHIN_STEP = "within"
BUSY = 200_000_000
"""Cycles that a GPU has to work before the gradients are exchanged: about a tenth of a second."""


class DeviceTraining:
    """Mixed precision, a scaler that changes its scale, dropout, BatchNorm and fused AdamW."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        torch.manual_seed(0)
        self.inner = nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 1)
        ).to(self.device)
        self.model = DistributedDataParallel(self.inner)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=8.0, growth_interval=2)
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
        }

    def forward(self, step: int) -> torch.Tensor:
        seeded = torch.Generator().manual_seed(step)
        rows = torch.randn(16, 16, generator=seeded)[dist.get_rank() :: dist.get_world_size()]
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(rows.to(self.device)).square().mean()
        return loss

    def step(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def look(self) -> list[Any]:
        """Return what has to be the same as without any of it: also what would be drawn next."""
        drawn = torch.rand(4, device=self.device)
        parts = [*self.inner.state_dict().values(), drawn]
        data = b"".join(part.detach().cpu().numpy().tobytes() for part in parts)
        return [hashlib.sha256(data).hexdigest()[:16], self.scaler.get_scale()]


def leaving(device: str, backend: str, steps: tuple[int, ...]) -> Script:
    """Each step in `steps` is left once, after forward and before gradients are exchanged."""

    def script(number: int, tell: Callable[[Any], None]) -> None:
        if device == "cuda":
            share_a_gpu(number)
        dist.init_process_group(backend)
        training = DeviceTraining(device)
        left = [*steps]
        with se.Checkpointer(training.state) as checkpoint:
            for step in checkpoint.steps(STEPS):
                with step:
                    loss = training.forward(step.number)
                    if step.number in left:
                        left.remove(step.number)
                        if device == "cuda":
                            torch.cuda._sleep(BUSY)
                        if number == 0:
                            tell(WITHIN_STEP)
                        _until_closed()
                    training.step(loss)
                    step.loss = loss
                if step.finished:
                    tell([step.number, *training.look(), measured().get("GPU memory", 0)])
            os._exit(0)

    return script


def _until_closed() -> None:
    """Wait until this rank was told, or a neighbour that was closes the connection to it."""
    deadline, wait = time.monotonic() + WITHIN, threading.Event()
    while not groups.is_closed:
        assert time.monotonic() < deadline
        wait.wait(LOOK_EVERY)


def asks(agent: Agent, worker: Worker, told: Any) -> None:
    if told == WITHIN_STEP:
        agent.rest()


def left(name: str, device: str, backend: str, steps: tuple[int, ...], folder: Path) -> Agent:
    return run(2, leaving(device, backend, steps), folder / name, Plan(60.0, on_told=asks))


def both(name: str, device: str, backend: str) -> dict[str, Case]:
    """Return the case, and the same without leaving any round."""
    return {
        name: functools.partial(left, name, device, backend, LEAVES_IN),
        f"{name}-alone": functools.partial(left, f"{name}-alone", device, backend, ()),
    }


CASES = both("device", "cpu", "gloo")
GPU_CASES = both("gpu-gloo", "cuda", "gloo") | both("gpu-nccl", "cuda", "nccl")
"""They are run only where they are asked for."""
