"""Trains with DDP while ranks are lost at each place of a step."""

import functools
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.in_place.resting_agent import Agent, Case, Plan, Script, Worker, run
from support.training.devices import BACKEND, DEVICE, begin, use
from support.training.losing_votes import die_having_told_one, lose_a_vote
from torch import nn
from torch.distributed import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

import spotelastic as se
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers
from spotelastic.training.in_place.voting import CONNECTS_AT

STEPS, AT, VICTIM = 6, 3, 2
PLACES = ("forward", "backward", "before-vote", "after-vote", "after-step", "behind", "frozen")
PLACES_OF_VOTE = ("in-vote", "connecting")


class Training:
    """A model with BatchNorm, dropout and a scheduler, and one batch per step for all ranks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.inner = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 1)
        ).to(DEVICE, torch.float64)
        self.model = DistributedDataParallel(self.inner)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }

    def gradients(self, step: int) -> torch.Tensor:
        rows = torch.randn(
            24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step)
        )
        own = rows[dist.get_rank() :: dist.get_world_size()]
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(own.to(DEVICE)).square().mean()
        torch.autograd.backward(loss)
        return loss

    def step(self, number: int) -> torch.Tensor:
        loss = self.gradients(number)
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()

    @property
    def digest(self) -> str:
        parts = [*self.inner.state_dict().values(), *self.moments(), torch.get_rng_state()]
        data = b"".join(part.cpu().numpy().tobytes() for part in parts)
        return hashlib.sha256(data).hexdigest()[:16]

    def moments(self) -> list[torch.Tensor]:
        state = self.optimizer.state_dict()["state"]
        return [part for each in state.values() for part in each.values()]

    @property
    def shared(self) -> str:
        parts = [*self.inner.parameters(), *self.moments()]
        data = b"".join(part.detach().cpu().numpy().tobytes() for part in parts)
        return hashlib.sha256(data).hexdigest()[:16]


class Accident:
    """Ends or freezes this process at a place of a step."""

    def __init__(self, number: int, place: str, training: Training) -> None:
        self.number, self.place, self.step = number, place, 0
        self.is_victim = number == VICTIM
        if place == "forward":
            training.inner[0].register_forward_pre_hook(lambda *_: self.happens("forward"))
        if place in ("backward", "frozen"):
            list(training.inner.parameters())[4].register_hook(lambda _: self.happens(place))
        if place == "before-vote":
            register_optimizer_step_pre_hook(lambda *_: self.has_exchanged())
        if place == "behind" and number == 1:
            lose_a_vote(lambda: self.step == AT)
        if place in ("in-vote", "connecting") and self.is_victim:
            at = AT if place == "in-vote" else CONNECTS_AT - 1  # one vote comes before the steps
            die_having_told_one(lambda: self.step == at, connecting=place == "connecting")

    def after_vote(self) -> None:
        """Call it once the Checkpointer has its own hook."""
        if self.place in ("after-vote", "behind"):
            register_optimizer_step_pre_hook(lambda *_: self.happens(self.place))

    def has_exchanged(self) -> None:
        if DEVICE == "cuda":  # which has only been told to
            torch.cuda.synchronize()
        self.happens("before-vote")

    def happens(self, place: str) -> None:
        if self.is_victim and self.step == AT and place == self.place:
            os.kill(os.getpid(), signal.SIGSTOP if place == "frozen" else signal.SIGKILL)


def losing(place: str) -> Script:
    def script(number: int, tell: Callable[[Any], None]) -> None:
        begin(number)
        training = Training()
        accident = Accident(number, place, training)
        objects = [*map(id, training.model.parameters()), id(training.model)]
        with se.Checkpointer(training.state) as checkpoint:
            hooked = False
            for step in checkpoint.steps(STEPS):
                if not hooked:
                    accident.after_vote()
                    hooked = True
                accident.step = step.number
                if place == "frozen" and accident.is_victim and step.number == AT:
                    tell("freezes")
                with step:
                    step.loss = training.step(step.number)
                    if place == "after-step":
                        accident.happens("after-step")
                tell([step.number, step.finished, dist.get_world_size(), training.shared])
            assert objects == [*map(id, training.model.parameters()), id(training.model)]
            tell({"digest": training.digest, "lr": training.scheduler.get_last_lr()})
            sys.stdout.flush()
            os._exit(0)

    return script


def reference(alone: int) -> Script:
    """The same without any of it: so many steps on three ranks, and the others on two of them."""

    def script(number: int, tell: Callable[[Any], None]) -> None:
        use(number)
        training: Training | None = None
        for world, first, last in ((3, 1, alone), (2, alone + 1, STEPS)):
            if number < world:
                port = int(os.environ["MASTER_PORT"])
                store = dist.PrefixStore(str(world), TCPStore("127.0.0.1", port))
                dist.init_process_group(BACKEND, store=store, rank=number, world_size=world)
                if training is None:
                    training = Training()
                else:
                    training.model = DistributedDataParallel(training.inner, init_sync=False)
                for step in range(first, last + 1):
                    training.step(step)
                dist.destroy_process_group()
        assert training is not None
        tell({"digest": training.digest, "lr": training.scheduler.get_last_lr()})
        os._exit(0)

    return script


def frozen(agent: Agent, worker: Worker, told: Any) -> None:
    if told == "freezes":
        os.waitid(os.P_PIDFD, worker.pidfd, os.WSTOPPED)
        agent.lose(worker)


def lost_at(place: str, folder: Path) -> Agent:
    plan = Plan(asks=place in ("frozen", "forward", "connecting"), on_told=frozen)
    return run(3, losing(place), folder / place, plan)


def referred(alone: int, folder: Path) -> Agent:
    name = f"reference-{alone}"
    return run(3, reference(alone), folder / name, Plan())


CASES: dict[str, Case] = {
    **{place: functools.partial(lost_at, place) for place in (*PLACES, *PLACES_OF_VOTE)},
    **{f"reference-{alone}": functools.partial(referred, alone) for alone in (2, 3)},
}
