"""Trains with a real checkpoint daemon while workers restore in place."""

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotelastic_checkpoints.types import Resume, Schedule
from support.in_place.resting_agent import Agent, Case, Plan, Script, Worker, run
from support.processes.patience import PATIENT
from support.saving.daemons_and_workers import Node, cluster, round_info
from support.training.losing_votes import lose_a_vote
from support.training.open_checkpointer import wait_for_slots
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.in_place import watching

STEPS, SAVED, AT, ARRIVES = 6, 2, 4, 3
GROWS_FOR, KEPT = 40, 60 << 20


def script(*, breaks: bool = False, until: int = STEPS) -> Script:
    """`breaks`: in a step, once. `until`: the last step, after which the loop is left early."""

    def train(number: int, tell: Callable[[Any], None]) -> None:
        wait_for_slots()
        watching.watch()
        dist.init_process_group("gloo")
        ranks = [dist.get_world_size()]
        torch.manual_seed(7 + number)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        state = {"model": model, "optimizer": optimizer}
        failing = [AT] if breaks else []
        if until < STEPS and number == 1:
            votes = [*range(until + 1)]  # one before the first step
            lose_a_vote(lambda: votes.pop() == 0)
        with se.Checkpointer(state) as checkpoint:
            for step in checkpoint.steps(STEPS):
                with step:
                    optimizer.zero_grad()
                    loss = model(torch.ones(2, 4) * step.number + torch.randn(2, 4)).square().mean()
                    loss.backward()
                    if until < STEPS:
                        step.vote()
                    optimizer.step()
                    ranks.append(dist.get_world_size())
                    if step.number == AT and failing:
                        failing.clear()
                        raise RuntimeError("gloo/transport/tcp/pair.cc: Connection reset by peer")
                    step.loss = loss
                if step.finished and until == STEPS:
                    # As an evaluation would do. Who arrives has no part in it.
                    dist.all_gather([torch.ones(3) for _ in range(ranks[-1])], torch.ones(3))
                if step.finished and step.number == SAVED:
                    assert checkpoint.wait()
                data = b"".join(part.detach().numpy().tobytes() for part in model.parameters())
                tell([step.number, step.finished, hashlib.sha256(data).hexdigest()[:16]])
                if step.number == until:
                    break
            tell(ranks)

    return train


def in_epochs(steps: int, *, plain: bool = False) -> Script:
    """Each epoch has a loop of its own, and an evaluation at its end. A rank arrives meanwhile."""

    def train(number: int, tell: Callable[[Any], None]) -> None:
        wait_for_slots()
        watching.watch()
        dist.init_process_group("gloo")
        torch.manual_seed(7 + number)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        epochs = STEPS // steps
        try:
            with se.Checkpointer(state) as checkpoint:
                for epoch in range(epochs) if plain else checkpoint.epochs(epochs, steps):
                    for step in checkpoint.steps((epoch + 1) * steps):
                        with step:
                            optimizer.zero_grad()
                            loss = model(torch.ones(2, 4) * step.number).square().mean()
                            loss.backward()
                            optimizer.step()
                            step.loss = loss
                        tell([step.number, step.finished, dist.get_world_size(), epoch])
                    right = torch.ones(1)
                    dist.all_reduce(right)
                    scheduler.step()
                    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
                    digest = hashlib.sha256(data).hexdigest()[:16]
                    tell([f"end of {epoch}", int(right), scheduler.get_last_lr()[0], digest])
        except UsageError as error:
            tell(str(error))

    return train


def grows(number: int, tell: Callable[[Any], None]) -> None:
    """Keeps something of each round on one rank."""
    wait_for_slots()
    watching.watch()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    kept: dict[str, torch.Tensor] = {}
    with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
        for step in checkpoint.steps(GROWS_FOR):
            with step:
                optimizer.zero_grad()
                model(torch.ones(2, 4) * step.number).square().mean().backward()
                optimizer.step()
            round_ = os.environ["SPOTELASTIC_ROUND"]
            if is_new := number == 1 and round_ not in kept:
                kept[round_] = torch.ones(KEPT // 4)
            tell([step.number, step.finished, dist.get_world_size(), is_new])


def asks(agent: Agent, worker: Worker, told: Any) -> None:
    if told[3]:
        agent.rest()


class Daemon:
    """Of the one node on which all workers are."""

    def __init__(self, node: Node, target: int) -> None:
        self._node, self._target = node, target
        self._epoch = node.agent.claim("test", timeout=PATIENT).epoch
        self._began = self._tells = False

    def begins(self, round_: str, members: list[Worker], _: Resume) -> None:
        if self._began:
            self._node.agent.end()
        self._began = True
        schedule = Schedule(1, SAVED)
        self._node.begin(
            round_info(round_, 0, [self._node.name], len(members), self._epoch, schedule=schedule)
        )
        if self._target:
            self._node.agent.set_target(round_, "arrival", self._target)

    def source(self) -> Resume:
        return Resume("store", self._target or SAVED, epoch=self._epoch)

    def looks(self, agent: Agent) -> None:
        """Has workers rest that wait at the target, once their save is committed. They are let go
        when they have heard that: otherwise they might go on in their script.
        """
        if self._tells and all(agent.has_heard(worker) for worker in agent.living):
            self._tells = False
            self._node.agent.set_target(f"r{agent.rounds}", "", 0)
        if not self._target:
            return
        status = self._node.agent.status()
        waiting = [worker for worker in status.workers if worker.waiting]
        commit = status.commit
        if len(waiting) == 2 and commit is not None and commit.step == self._target:
            self._target, target = 0, self._target
            agent.rest()
            self._tells = True
            agent.plan.restores_from = lambda: Resume("store", target, epoch=self._epoch)


def restored(folder: Path, name: str, script: Script) -> Agent:
    arrives = name.startswith("arrival")
    count = 3 if arrives else 2
    (folder / f"{name}-daemon").mkdir()
    with cluster(folder / f"{name}-daemon", workers=count) as [node]:
        daemon = Daemon(node, ARRIVES if arrives else 0)
        plan = Plan(
            begins=daemon.begins,
            restores_from=daemon.source,
            looks=daemon.looks,
            later=[2] if arrives else [],
            node=node.name,
        )
        return run(count, script, folder / name, plan, str(node.socket))


def grown(folder: Path) -> Agent:
    """One rank grows. The others go on without it: nobody starts a new process here."""
    (folder / "grown-daemon").mkdir()
    with cluster(folder / "grown-daemon", workers=2) as [node]:
        daemon = Daemon(node, 0)
        plan = Plan(
            begins=daemon.begins,
            restores_from=daemon.source,
            on_told=asks,
            node=node.name,
            ends_deaf=True,
        )
        return run(2, grows, folder / "grown", plan, str(node.socket))


CASES: dict[str, Case] = {
    "grown": grown,
    **{
        name: functools.partial(restored, name=name, script=each)
        for name, each in (
            ("dirty", script(breaks=True)),
            ("arrival", script()),
            ("arrival-epoch-ends", in_epochs(ARRIVES)),
            ("arrival-in-epoch", in_epochs(2)),
            ("arrival-plain-epochs", in_epochs(2, plain=True)),
            ("early", script(until=AT)),
        )
    },
}
