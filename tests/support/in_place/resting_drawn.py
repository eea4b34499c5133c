"""Trains while workers are asked to rest, and are killed, at drawn moments.

Every few steps one is rehearsed, so that many of these moments are in the midst of a rehearsal.
"""

import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from spotelastic_checkpoints import messages
from support.in_place.resting_agent import Agent, Case, Plan, Script, run
from support.in_place.resting_kinds import Committed, parameters
from support.saving.daemons_and_workers import cluster
from support.training import loop_kinds
from support.training.loop_kinds import Plain
from support.training.open_checkpointer import wait_for_slots
from torch.distributed import TCPStore

import spotelastic as se
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers
from spotelastic.training.in_place import rehearsing, watching
from spotelastic.training.runtime import rehearsal_record

STEPS, QUIET = 60, 52
"""Steps that are made, and the one after which nothing happens to workers any more."""
RANKS, KILLED = 4, 2
OFTEN = 2
"""Fewest steps between two rehearsals, of which some take a few steps more."""
MOST = 25
"""Moments: each ends a rehearsal that is under way, so that a slow machine would make no step."""
APART = 0.6
"""Seconds between two moments, at most."""
KINDS = (loop_kinds.Plain, loop_kinds.ReducedBefore, loop_kinds.FusedWithScaler)
BETWEEN = 0.05
"""Seconds between two attempts of a rehearsal, at most: much may happen to workers there."""
SEEDS = range(200)
"""Of which the tests take a few."""


def script(make: type[Plain], seed: int) -> Script:
    def train(number: int, tell: Callable[[Any], None]) -> None:
        draw = random.Random(f"{seed}/{number}")
        rehearsal_record.LEAST, rehearsal_record.SHARE, rehearsing.APART = OFTEN, 1e9, OFTEN
        wait_for_slots()
        watching.watch()
        dist.init_process_group("gloo")
        kind = make()
        with se.Checkpointer(kind.state, rehearse=True) as checkpoint:
            kind.checkpoint = checkpoint
            for step in checkpoint.steps(STEPS):
                with step:
                    step.loss = kind.block(step.number)
                if step.finished:
                    kind.after(step.number)
                tell([step.number, step.rehearses])
                if step.rehearses:
                    threading.Event().wait(draw.uniform(0, BETWEEN))
            tell({"parameters": parameters(kind)})
            os._exit(0)

    return train


def alone(_: int, tell: Callable[[Any], None]) -> None:
    """Each kind in one process, without a Checkpointer and with no loss."""
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    for make in KINDS:
        kind = make()
        kind.checkpoint = SimpleNamespace()
        for step in range(1, STEPS + 1):
            kind.block(step)
        tell([make.__name__, parameters(kind)])


class Moments:
    """What happens to workers, and when."""

    def __init__(self, seed: int, daemon: Committed) -> None:
        self._draw = random.Random(seed)
        self._daemon = daemon
        self._killed = 0
        self._next = self._others = 0.0
        self._left = MOST

    def looks(self, agent: Agent) -> None:
        now = time.monotonic()
        if self._others and now >= self._others:
            self._others = 0.0
            agent.rest()
        if now < self._next or self._is_over(agent) or not self._daemon.has_committed:
            return
        self._next, self._left = now + self._draw.uniform(0, APART), self._left - 1
        if self._killed < KILLED and self._draw.random() < 0.3:
            self._killed += 1
            os.kill(self._draw.choice(agent.living).pid, signal.SIGKILL)
        elif self._draw.random() < 0.5:
            agent.rest()
        else:  # some hear of it later than others
            later = [each.number for each in agent.living if self._draw.random() < 0.5]
            agent.rest(but=later)
            self._others = now + self._draw.uniform(0, 0.03)

    def _is_over(self, agent: Agent) -> bool:
        return not self._left or any(
            isinstance(told, dict) or told[0] >= QUIET
            for worker in agent.workers
            for told in worker.told[-1:]
        )


def kind_of(case: str) -> str:
    """Return the name of the kind of loop that is trained in a case."""
    return _kind(int(case.rpartition("-")[2])).__name__


def _kind(seed: int) -> type[Plain]:
    return KINDS[seed % len(KINDS)]


def drawn(folder: Path, seed: int) -> Agent:
    make, heard = _kind(seed), []

    def hears(event: messages.DaemonEvent) -> None:
        if isinstance(event, messages.Rehearsed | messages.SaveFailed):
            heard.append(event.message)

    (folder / "daemon").mkdir()
    with cluster(folder / "daemon", workers=RANKS) as [node]:
        daemon = Committed(node, 0)
        node.agent.subscribe(hears)
        plan = Plan(
            begins=daemon.begins,
            restores_from=daemon.source,
            looks=Moments(seed, daemon).looks,
            node=node.name,
        )
        agent = run(RANKS, script(make, seed), folder / "drawn", plan, str(node.socket))
        agent.heard = heard
        return agent


CASES: dict[str, Case] = {
    "drawn-alone": lambda folder: run(1, alone, folder / "alone", Plan()),
    **{f"drawn-{seed}": functools.partial(drawn, seed=seed) for seed in SEEDS},
}
