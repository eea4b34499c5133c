"""Trains in loops as people write them, while workers are asked to rest again and again."""

import copy
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from support.in_place.resting_agent import Case, Plan, run
from support.in_place.resting_often import ask, digest
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

import spotelastic as se
from spotelastic.training.in_place.groups import groups

SKIPPED, CAUGHT, LEFT, STEPS = 2, 3, 5, 9


def loops(number: int, tell: Any) -> None:
    """Ends with os._exit: nothing is saved here."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sampler = se.ElasticSampler(32, 8)
    loader: DataLoader[Any] = DataLoader(range(32), batch_sampler=sampler)  # type: ignore[arg-type]

    def train(batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch.float().unsqueeze(1) * torch.ones(1, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    # What is tried out before the loop is no step.
    before = copy.deepcopy((inner.state_dict(), optimizer.state_dict()))
    for _ in range(3):
        train(torch.ones(2))
    inner.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    torch.manual_seed(0)
    state = {"model": model, "optimizer": optimizer, "data": sampler, "average": 0.0}
    with se.Checkpointer(state) as checkpoint:
        batches = checkpoint.batches(loader)

        def made(step: Any) -> None:
            if step.finished:
                tell([step.number, state["average"], digest(inner.parameters())])

        # In a function, with a profiler around, and a generator around the steps, as tqdm is.
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            first(checkpoint, batches, train, state, made, profiler)
        for step in checkpoint.steps(STEPS):
            with step:
                step.loss = train(next(batches))
                if step.number == LEFT:
                    break
            made(step)
        made(step)
        for step in checkpoint.steps(STEPS):
            with step:
                step.loss = train(next(batches))
            made(step)
        os._exit(0)


def first(checkpoint: Any, batches: Any, train: Any, state: Any, made: Any, profiler: Any) -> None:
    for step in around(checkpoint.steps(4)):
        with step:
            batch = next(batches)
            if step.number == SKIPPED:  # such as a loss that is not finite
                continue
            try:
                step.loss = train(batch)
                if step.number == CAUGHT:
                    raise ValueError("of the script's own")
            except (ValueError, RuntimeError):
                pass
            state["average"] = 0.9 * state["average"] + 0.1
        profiler.step()
        made(step)


def around(steps: Iterator[Any]) -> Iterator[Any]:
    yield from steps


def unfinished(_: int, tell: Any) -> None:
    """A group is made after one that was not finished, which ranks may have tried or not."""
    dist.init_process_group("gloo")
    make = c10d._new_process_group_helper

    def fail(*_: Any, **more: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    c10d._new_process_group_helper = fail
    with suppress(RuntimeError):
        groups.make(dict(os.environ))
    c10d._new_process_group_helper = make
    groups.make(dict(os.environ))
    tell(dist.group.WORLD.group_name)  # type: ignore[union-attr]


CASES: dict[str, Case] = {
    "loops": lambda folder: run(2, loops, folder / "loops", Plan(12.0, on_told=ask)),
    "unfinished": lambda folder: run(1, unfinished, folder / "unfinished", Plan()),
}
