"""Trains with what scripts use while workers rest again and again."""

import hashlib
import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.in_place.resting_agent import Agent, Case, Plan, Script, Worker, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

import spotelastic as se
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers

ROUNDS, LONG = 12, 60
SAMPLES, BATCH, STEPS, AT = 32, 8, 8, 3


def digest(tensors: Any) -> str:
    data = b"".join(each.detach().numpy().tobytes() for each in tensors)
    return hashlib.sha256(data).hexdigest()[:16]


def often(compiled: str) -> Script:
    """Many rounds of the same ranks, with a compiled model."""

    def script(number: int, tell: Any) -> None:
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        graphs = []

        def counting(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return graph

        if compiled == "within":
            model: Any = DistributedDataParallel(torch.compile(inner, backend=counting))
        else:
            model = torch.compile(DistributedDataParallel(inner), backend=counting)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with se.Checkpointer({"model": inner, "optimizer": optimizer}) as checkpoint:
            for step in checkpoint.steps(LONG):
                with step:
                    optimizer.zero_grad()
                    rows = torch.ones(4, 8) * (dist.get_rank() + step.number)
                    step.loss = model(rows).square().mean()
                    step.loss.backward()
                    optimizer.step()
                if step.finished:
                    sizes = len([*Path("/proc/self/fd").iterdir()]), threading.active_count()
                    tell([step.number, *sizes, len(graphs), digest(inner.parameters())])
            os._exit(0)

    return script


def ask(agent: Agent, worker: Worker, told: Any) -> None:
    """After every second step, so that all have entered their round before the next is begun."""
    if worker.number == 0 and told[0] % 2 and agent.rounds <= ROUNDS and told[0] <= LONG - 5:
        agent.rest()


def idioms(number: int, tell: Any) -> None:
    """Two optimizers, a scaler, clipping, an average, microbatches and a loader with a worker."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    parts: Any = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 1)])
    number_now = [0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.parts[1](self.parts[0](rows).tanh())
            return result

    model = DistributedDataParallel(Model())
    average = AveragedModel(model.module)
    optimizers = [torch.optim.AdamW(part.parameters(), lr=0.05) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    sampler = se.ElasticSampler(SAMPLES, BATCH, seed=1)
    rows: Any = range(SAMPLES)
    loader: DataLoader[Any] = DataLoader(
        rows, batch_sampler=sampler, num_workers=1, persistent_workers=True
    )
    state = {
        "model": model,
        "average": average,
        "first": optimizers[0],
        "second": optimizers[1],
        "scaler": scaler,
        "data": sampler,
    }
    if number == 2:
        parts[1].weight.register_hook(lambda _: end() if number_now == [AT] else None)
    with se.Checkpointer(state) as checkpoint:
        batches = checkpoint.batches(loader)
        for attempt in checkpoint.steps(STEPS):
            number_now = [attempt.number]
            with attempt:
                samples = next(batches)
                for micro in se.microbatches(sampler.batch, 2):
                    rows = samples[micro.rows].double().float().unsqueeze(1) * torch.ones(1, 4)
                    with nullcontext() if micro.last else model.no_sync():
                        loss = model(rows / SAMPLES).square().mean() * micro.weight
                        scaler.scale(loss).backward()
                for optimizer in optimizers:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for optimizer in optimizers:
                    scaler.step(optimizer)
                scaler.update()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                average.update_parameters(model.module)
                attempt.loss = loss
            share = samples.tolist() if attempt.finished else []
            everything = [*model.parameters(), *average.parameters()]
            place = sampler.state_dict()
            tell([attempt.number, share, scaler.get_scale(), digest(everything), place])
        os._exit(0)


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


CASES: dict[str, Case] = {
    "within": lambda folder: run(2, often("within"), folder / "within", Plan(60.0, on_told=ask)),
    "around": lambda folder: run(2, often("around"), folder / "around", Plan(60.0, on_told=ask)),
    "idioms": lambda folder: run(3, idioms, folder / "idioms", Plan()),
}
