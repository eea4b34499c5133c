"""Trains while workers are asked to rest, and are killed, at drawn moments.

Every few steps one is rehearsed, so that many of these moments are in the midst of a rehearsal.
Of ranks that are not equally fast, those steps are rehearsed that measure how fast they are.
"""

import functools
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from spotelastic_checkpoints import messages
from support.in_place.resting_agent import Agent, Case, Plan, Script, run
from support.in_place.resting_kinds import Committed, parameters
from support.processes.patience import DRAWN_WITHIN
from support.saving.daemons_and_workers import cluster
from support.training import loop_kinds
from support.training.loop_kinds import Plain
from support.training.open_checkpointer import wait_for_slots
from support.training.virtual_loops import (
    Flipped,
    LeavesOut,
    Poisoned,
    Sharded,
    ThrottledWhereMeasured,
    Virtual,
    Wrapped,
)
from torch.distributed import Store, TCPStore

import spotelastic as se
from spotelastic.model.in_place import AUDITED
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers
from spotelastic.training.exact.pieces import MEASURED_EVERY
from spotelastic.training.in_place import watching
from spotelastic.training.runtime.rehearsal_record import RehearsalRecord

STEPS, QUIET = 60, 8
"""Steps that are made, and so many at the end in which nothing happens to workers any more."""
SAVED = 8
"""Step that is committed before another is made, where nothing happens to workers."""
RANKS, KILLED = 4, 2
OFTEN = 3
"""Steps from one rehearsal to the next."""
MOST, MOST_BUILT = 25, 10
"""Moments: each ends a rehearsal that is under way, so that a slow machine would make no step.
After each, a sharded model is built again, which takes a busy machine seconds.
"""
APART = 0.6
"""Seconds between two moments, at most."""
KINDS = [
    kind
    for kind in loop_kinds.RIGHT
    if kind not in (loop_kinds.TwoFrequencies, loop_kinds.ChangedBatch, loop_kinds.AugmentsInLoader)
]
"""But for those of which gradients, and the place in the data, are in no save."""
LATE = 0.1
"""Seconds after which what a rank has set is in the store, at most."""
BETWEEN = 0.05
"""Seconds between two attempts of a rehearsal, at most: much may happen to workers there."""
SEEDS = range(200)
"""Of which the tests take a few."""
VIRTUAL = (Virtual, Wrapped, ThrottledWhereMeasured, Sharded)
"""Kinds with virtual ranks, whose parameters are the same to the last bit."""


def script(make: type[Plain | Virtual], seed: int, *, saves: bool) -> Script:
    def train(number: int, tell: Callable[[Any], None]) -> None:
        draw = random.Random(f"{seed}/{number}")
        rehearse_often(make)
        set_late(draw)
        wait_for_slots()
        watching.watch()
        dist.init_process_group("gloo")
        if audits := getattr(make, "audits", 0):
            os.environ["SPOTELASTIC_AUDIT"] = str(audits)
        kind = make()
        guards = getattr(make, "guards", False)
        build = getattr(kind, "build", None)
        how: dict[str, Any] = {
            "rehearse": not (guards or "SPOTELASTIC_AUDIT" in os.environ),  # which takes its time
            "guard": guards,
        }
        with se.Checkpointer(kind.state, build=build, **how) as checkpoint:
            kind.checkpoint = checkpoint
            for step in checkpoint.steps(steps_of(make)):
                with step:
                    step.loss = kind.block(step.number)
                if step.finished:
                    kind.after(step.number)
                tell([step.number, step.rehearses])
                if saves and step.finished and step.number == SAVED:
                    checkpoint.save()
                    checkpoint.wait()
                if step.rehearses:
                    threading.Event().wait(draw.uniform(0, BETWEEN))
            tell({"parameters": parameters(kind)})
            os._exit(0)

    return train


def steps_of(make: type[Plain | Virtual]) -> int:
    if make is Sharded:  # each step exchanges all gradients, piece by piece
        return STEPS // 2
    return getattr(make, "made", STEPS)


def rehearse_often(make: type[Plain | Virtual]) -> None:
    rehearsed = RehearsalRecord.rehearsed

    def after(step: int) -> int:
        """Return the step that is rehearsed next."""
        if make is ThrottledWhereMeasured:
            return step + MEASURED_EVERY - step % MEASURED_EVERY
        return step + OFTEN

    def sooner(record: RehearsalRecord, step: int, *args: Any, **told: Any) -> RehearsalRecord:
        found = rehearsed(record, step, *args, **told)
        return replace(found, later=after(step))

    RehearsalRecord.rehearsed = sooner  # type: ignore[assignment, method-assign]


def set_late(draw: random.Random) -> None:
    """What a rank sets in the round's store may arrive late, as on a busy machine.

    It arrives before what the rank asks the store for next, as one connection's requests do.
    """
    sets, asks, underway = Store.set, Store.check, list[threading.Thread]()

    def late(store: Store, key: str, value: str) -> None:
        seconds = draw.uniform(0, LATE)

        def arrives() -> None:
            threading.Event().wait(seconds)
            sets(store, key, value)

        underway.append(threading.Thread(target=arrives, name="late", daemon=True))
        underway[-1].start()

    def after(store: Store, keys: list[str]) -> bool:
        while underway:
            underway.pop().join()
        return asks(store, keys)

    Store.set, Store.check = late, after  # type: ignore[assignment, method-assign]


def alone(_: int, tell: Callable[[Any], None]) -> None:
    """Each kind in one process, without a Checkpointer and with no loss."""
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    for make in KINDS:
        kind = make()
        kind.checkpoint = SimpleNamespace(batches=itertools.cycle)
        for step in range(1, STEPS + 1):
            kind.block(step)
        tell([make.__name__, parameters(kind)])


class Moments:
    """What happens to workers, and when."""

    def __init__(self, seed: int, daemon: Committed, quiet: int, most: int) -> None:
        self._draw = random.Random(seed)
        self._daemon = daemon
        self._quiet = quiet
        self._killed = 0
        self._next = self._others = 0.0
        self._left = most
        self._round, self._before = -1, dict[int, int]()

    def looks(self, agent: Agent) -> None:
        now = time.monotonic()
        if self._others and now >= self._others:
            self._others = 0.0
            agent.rest()
        if now < self._next or not self._all_train(agent) or self._is_over(agent):
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

    def _all_train(self, agent: Agent) -> bool:
        """Return whether all have tried a step in this round: gloo does not wake everybody who
        waits for a peer that is to connect, and has left.
        """
        if self._round != agent.rounds:
            self._round = agent.rounds
            self._before = {each.number: len(each.told) for each in agent.workers}
        all_have = all(len(each.told) > self._before[each.number] for each in agent.living)
        return all_have and self._daemon.has_committed

    def _is_over(self, agent: Agent) -> bool:
        return not self._left or any(
            isinstance(told, dict) or told[0] >= self._quiet
            for worker in agent.workers
            for told in worker.told[-1:]
        )


def kind_of(case: str) -> str:
    """Return the name of the kind of loop that is trained in a case."""
    return _kind(int(case.rpartition("-")[2])).__name__


def _kind(seed: int) -> type[Plain]:
    return KINDS[seed % len(KINDS)]


def virtual_alone(folder: Path, number: int) -> Agent:
    """A kind with virtual ranks in one process, to which nothing happens."""
    return drawn(folder, 0, VIRTUAL[number], ranks=1, happens=False)


def drawn_virtual(folder: Path, seed: int) -> Agent:
    return drawn(folder, seed, VIRTUAL[seed % len(VIRTUAL)])


def drawn_plain(folder: Path, seed: int) -> Agent:
    return drawn(folder, seed, _kind(seed))


def drawn(
    folder: Path,
    seed: int,
    make: type[Plain | Virtual],
    ranks: int = RANKS,
    *,
    happens: bool = True,
) -> Agent:
    heard: list[str] = []

    def hears(event: messages.DaemonEvent) -> None:
        if isinstance(event, messages.Rehearsed | messages.SaveFailed):
            heard.append(event.message)
        if isinstance(event, messages.Rehearsed) and event.kind == AUDITED:
            heard.append(f"{event.outcome}: {event.message}")

    (folder / "daemon").mkdir()
    with cluster(folder / "daemon", workers=ranks) as [node]:
        daemon = Committed(node, 0)
        node.agent.subscribe(hears)
        most = MOST_BUILT if make is Sharded else MOST
        moments = Moments(seed, daemon, steps_of(make) - QUIET, most)
        plan = Plan(
            begins=daemon.begins,
            restores_from=daemon.source,
            within=DRAWN_WITHIN / 2,
            looks=moments.looks if happens else None,
            node=node.name,
        )
        trains = script(make, seed, saves=not happens)
        agent = run(ranks, trains, folder / "drawn", plan, str(node.socket))
        agent.heard = heard
        return agent


def guarded(folder: Path, seed: int) -> Agent:
    return drawn(folder, seed, Poisoned, happens=seed > 0)


def flipped(folder: Path, seed: int) -> Agent:
    """One of three ranks has a bit flipped. Nothing else happens to it."""
    return drawn(folder, seed, flipped_kind(seed), ranks=3, happens=False)


def flipped_kind(seed: int) -> type[Flipped]:
    draw = random.Random(f"flip/{seed}")
    what = ("gradient", "weight", "moment")[seed % 3]
    # A copy stays wrong until an audit.
    audits = 1 if what == "gradient" else 3
    chosen = {"rank": draw.randrange(3), "at": draw.randrange(20, 40)}
    return type("Flipped", (Flipped,), {"what": what, "audits": audits, **chosen})


CASES: dict[str, Case] = {
    "drawn-alone": lambda folder: run(1, alone, folder / "alone", Plan()),
    **{f"drawn-{seed}": functools.partial(drawn_plain, seed=seed) for seed in SEEDS},
    **{f"guarded-{seed}": functools.partial(guarded, seed=seed) for seed in SEEDS},
    **{f"flipped-{seed}": functools.partial(flipped, seed=seed) for seed in SEEDS},
    "left-out-alone": lambda folder: drawn(folder, 0, LeavesOut, ranks=1, happens=False),
    **{f"virtual-{seed}": functools.partial(drawn_virtual, seed=seed) for seed in SEEDS},
    **{
        f"virtual-alone-{number}": functools.partial(virtual_alone, number=number)
        for number in range(len(VIRTUAL))
    },
}
