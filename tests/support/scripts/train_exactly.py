"""A training script whose every step can be compared with an uninterrupted run.

Arguments: FOLDER STEP_TIME. Each rank appends two lines per step to `<folder>/steps`: its samples
before all ranks meet, and the loss of all after that. It goes on until the file `<folder>/stop`
exists. Then the same ranks write the steps of an uninterrupted run to `<folder>/whole`.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.training.exactly import BATCH, ROWS
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import spotelastic as se


class Job:
    """Noisy targets, so that the loss never comes near zero, where rounding would show."""

    def __init__(self, file: Path) -> None:
        torch.manual_seed(0)
        self._file = file
        self._rows = torch.randn(ROWS, 8, dtype=torch.float64)
        self._targets = torch.randn(ROWS, dtype=torch.float64)
        self.model = DistributedDataParallel(
            nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.sampler = se.ElasticSampler(ROWS, BATCH, seed=4)
        numbers: Any = range(ROWS)  # torch wants a `Dataset`, and takes what has items
        self.loader: DataLoader[int] = DataLoader(numbers, batch_sampler=self.sampler)

    @property
    def state(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer, "data": self.sampler}

    def one(self, step: int, share: torch.Tensor) -> torch.Tensor:
        """Step `step` on this rank's share; the loss over the global batch."""
        total, samples = torch.zeros((), dtype=torch.float64), []
        for micro in se.microbatches(self.sampler.batch, 3):
            part = share[micro.rows]
            context: AbstractContextManager[None] = (
                nullcontext() if micro.last else self.model.no_sync()
            )
            with context:
                predicted = self.model(self._rows[part]).squeeze(1)
                loss = (predicted - self._targets[part]).square().mean() * micro.weight
                loss.backward()
            total += loss.detach()
            samples += part.tolist() if micro.weight else []
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._tell(step, samples=samples)
        dist.all_reduce(total)
        total /= dist.get_world_size()
        self._tell(step, loss=float(total.item()).hex())
        return total

    def _tell(self, step: int, **told: object) -> None:
        line = {
            "step": step,
            "round": os.environ.get("SPOTELASTIC_ROUND", ""),
            "world": dist.get_world_size(),
            "rank": dist.get_rank(),
            **told,
        }
        # One write, so that the lines of several processes stay apart.
        with self._file.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


def all_stop(wish: Callable[[], bool]) -> bool:
    stop = torch.tensor(float(wish()))
    dist.all_reduce(stop)
    return bool(stop)


def train(folder: Path, step_time: float) -> int:
    """The last step."""
    job = Job(folder / "steps")
    stopped = (folder / "stop").exists
    with se.Checkpointer(job.state) as checkpoint:
        step = checkpoint.restore()
        print(f"begins at {step}", flush=True)
        while True:
            for share in job.loader:
                if all_stop(stopped):
                    return step
                step += 1
                checkpoint.step(step, loss=job.one(step, share))
                time.sleep(step_time)


def train_whole(folder: Path, steps: int) -> None:
    job = Job(folder / "whole")
    step = 0
    while step < steps:
        for share in job.loader:
            step += 1
            job.one(step, share)
            job.sampler.advance()
            if step == steps:
                break


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train_whole(Path(sys.argv[1]), train(Path(sys.argv[1]), float(sys.argv[2])))
    dist.destroy_process_group()
