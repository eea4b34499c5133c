"""Trains what scripts make of DistributedDataParallel, on three ranks and then on two.

All variants are trained side by side. Each step has one batch for all ranks, so that the weights do
not depend on the number of ranks: one process alone comes to the same.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.in_place.resting_agent import Agent, Case, Plan, Worker, run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers
from spotelastic.training.in_place.groups import groups

STEPS, RESTS_AFTER, AT, VICTIM, ROWS = 7, 2, 4, 2, 24
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "static views": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "buckets": {"bucket_cap_mb": 0.0001},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {"fused": {"fused": True}, "foreach": {"foreach": True}}


class Sums(nn.Module):
    """Adds up over the group that a helper keeps."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.helper = type("Helper", (), {})()
        self.helper.group = dist.group.WORLD

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.ones(1), group=self.helper.group)
        result: torch.Tensor = self.inner(rows)
        return result


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def rows(step: int) -> torch.Tensor:
    seeded = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 8, dtype=torch.float64, generator=seeded)


class Variant:
    """A model and its optimizer."""

    def __init__(self, name: str) -> None:
        self.inner: nn.Module = net()
        inner = Sums(self.inner) if name == "helper" else self.inner
        self.model = DistributedDataParallel(inner, **OPTIONS.get(name, {}))
        if name == "hook":
            self.model.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=0.05, **OPTIMIZERS.get(name, {})
        )

    def gradients(self, own: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(own).square().mean().backward()


class Compiled(Variant):
    """Has its gradients summed up by the script, and divided in compiled code."""

    def __init__(self, name: str) -> None:
        super().__init__("plain")
        self.compilations = 0
        self._mean = torch.compile(
            lambda total: total / dist.get_world_size(), backend=self._counting, dynamic=False
        )

    def gradients(self, own: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.inner(own).square().mean().backward()
        gradients = [part.grad for part in self.inner.parameters() if part.grad is not None]
        total = torch.cat([each.flatten() for each in gradients])
        dist.all_reduce(total)
        parts = self._mean(total).split([each.numel() for each in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _counting(self, graph: Any, _: Any) -> Any:
        self.compilations += 1
        return graph


NAMES = (*OPTIONS, *OPTIMIZERS, "hook", "helper")


def script(number: int, tell: Callable[[Any], None]) -> None:
    dist.init_process_group("gloo")
    compiled = Compiled("compiled")
    variants = {name: Variant(name) for name in NAMES} | {"compiled": compiled}
    state: dict[str, Any] = {}
    for name, variant in variants.items():
        state |= {name: variant.model, f"{name}'s optimizer": variant.optimizer}
    with se.Checkpointer(state) as checkpoint:
        for step in checkpoint.steps(STEPS):
            with step:
                own = rows(step.number)[dist.get_rank() :: dist.get_world_size()]
                for variant in variants.values():
                    variant.gradients(own)
                if number == VICTIM and step.number == AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                for variant in variants.values():
                    variant.optimizer.step()
            if step.finished:
                tell([step.number, dist.get_world_size(), compiled.compilations])
        tell({name: digits(variant.inner) for name, variant in variants.items()})
        os._exit(0)


def alone(number: int, tell: Callable[[Any], None]) -> None:
    inner = net()
    optimizer = torch.optim.AdamW(inner.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        inner(rows(step)).square().mean().backward()
        optimizer.step()
    tell(digits(inner))
    os._exit(0)


def digits(module: nn.Module) -> list[float]:
    return [round(float(each), 9) for part in module.parameters() for each in part.flatten()]


def asks(agent: Agent, worker: Worker, told: Any) -> None:
    if (
        worker.number == 0
        and isinstance(told, list)
        and told[0] == RESTS_AFTER
        and agent.rounds == 1
    ):
        agent.rest()


def varied(folder: Path) -> Agent:
    return run(3, script, folder / "variants", Plan(on_told=asks))


# -- what cannot go on ----------------------------------------------------------------------------


def late(number: int, tell: Callable[[Any], None]) -> None:
    """The script makes a group of its own between two steps."""
    dist.init_process_group("gloo")
    variant = Variant("plain")
    state = {"model": variant.model, "optimizer": variant.optimizer}
    own = None
    try:
        with se.Checkpointer(state) as checkpoint:
            for step in checkpoint.steps(STEPS):
                own = own or dist.new_group()
                with step:
                    variant.gradients(rows(step.number)[dist.get_rank() :: dist.get_world_size()])
                    variant.optimizer.step()
                tell([step.number, step.finished])
    except RuntimeError:
        os._exit(0)  # the other one was ended before this one was asked


def made_late(folder: Path) -> Agent:
    return run(2, late, folder / "late", Plan(on_told=asks, ends_deaf=True, complaints=1))


def kept(number: int, tell: Callable[[Any], None]) -> None:
    """The script keeps the group in a variable, which nothing can see."""
    dist.init_process_group("gloo")
    variant, group = Variant("plain"), dist.group.WORLD
    state = {"model": variant.model, "optimizer": variant.optimizer}
    try:
        with se.Checkpointer(state) as checkpoint:
            for step in checkpoint.steps(STEPS):
                with step:
                    variant.gradients(rows(step.number)[dist.get_rank() :: dist.get_world_size()])
                    dist.all_reduce(torch.ones(1), group=group)
                    variant.optimizer.step()
                tell([step.number, step.finished])
    except ValueError as error:
        tell({"notes": error.__notes__})
    os._exit(0)


# -- errors of NCCL -------------------------------------------------------------------------------


def failing(number: int, tell: Callable[[Any], None]) -> None:
    """One rank is told in a step that a collective has failed, as by torch's watchdog."""
    dist.init_process_group("gloo")
    variant = Variant("plain")
    left = [RESTS_AFTER + 1] if number == 1 else []
    with se.Checkpointer({"model": variant.model, "optimizer": variant.optimizer}) as checkpoint:
        for step in checkpoint.steps(STEPS):
            with step:
                variant.optimizer.zero_grad()
                loss = variant.model(rows(step.number)).square().mean()
                if step.number in left:
                    left.clear()
                    told = threading.Thread(target=groups.failed, args=("NCCL: TIMEOUT",))
                    told.start()
                    told.join()
                loss.backward()
                variant.optimizer.step()
            tell([step.number, step.finished])
        os._exit(0)


CASES: dict[str, Case] = {
    "variants": varied,
    "alone": lambda folder: run(1, alone, folder / "alone", Plan()),
    "late": made_late,
    "kept": lambda folder: run(2, kept, folder / "kept", Plan(on_told=asks)),
    "failing": lambda folder: run(2, failing, folder / "failing", Plan()),
}
