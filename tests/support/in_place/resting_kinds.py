"""Trains in each kind of loop, with a real daemon: steps are rehearsed, and then a rank is lost.

The rank is lost when it has its gradients. Another one hears of it before it votes, and the third
in its vote. So all begin the step again, which is the ordinary case.
"""

import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.types import Resume
from support.in_place.resting_agent import Agent, Case, Plan, Script, Worker, run
from support.in_place.resting_restored import Daemon
from support.processes.patience import PATIENT
from support.saving.daemons_and_workers import cluster
from support.training import changing_kinds, loop_kinds
from support.training.loop_kinds import Plain
from support.training.open_checkpointer import wait_for_slots
from torch.distributed import TCPStore
from torch.distributed.tensor import DTensor

import spotelastic as se
from spotelastic.training import checkpointer  # noqa: F401  # once for all workers
from spotelastic.training.in_place import watching
from spotelastic.training.in_place.groups import groups
from spotelastic.training.runtime.rehearsal_record import RehearsalRecord

STEPS, LOST_AT, VICTIM, ASKED_BEFORE = 14, 8, 2, 1
RIGHT = (*loop_kinds.RIGHT, *changing_kinds.RIGHT)
LATER_LOST = {"TwoFrequencies": 11}
"""Steps in which gradients of earlier ones are there."""
REHEARSED = 5
LOST_WITHIN = {loop_kinds.Plain: (1, 2, 3), loop_kinds.ReducedBefore: (1, 3, 4)}
"""Attempts of the rehearsed step 2 in which a rank is lost: the first, one that ends in the vote,
and the last. That which ends in a collective never comes to the place of the loss.
"""
ASKED_AFTER = {loop_kinds.Plain: (1, 2, 3), loop_kinds.ReducedBefore: (1, 2, 3, 4)}
"""Attempts of the rehearsed step 2 after which all are asked to rest."""


def parameters(kind: Any) -> list[float]:
    modules = [value for value in kind.state.values() if isinstance(value, torch.nn.Module)]
    found = [parameter for each in modules for parameter in each.parameters()]
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in found]
    return [x for each in whole for x in each.detach().view(-1).tolist()]


def script(
    make: type[Plain],
    steps: int,
    lost_at: int,
    attempt: int = 1,
    unlike: int = -1,
    asked_after: int = 0,
    knows_more: int = -1,
) -> Script:
    """`lost_at` is the step in whose `attempt` a rank is lost; 0: none is. Worker `unlike` is as
    one of a version that knows of no rehearsals. After attempt `asked_after` of the rehearsed step
    all are asked to rest, before they look for the next one. Worker `knows_more` has heard of one
    rehearsal more than the others when a rank is lost.
    """

    def train(number: int, tell: Callable[[Any], None]) -> None:
        wait_for_slots()
        watching.watch()
        dist.init_process_group("gloo")
        kind = make()
        if number == knows_more:
            hear_more()
        with se.Checkpointer(kind.state, rehearse=number != unlike) as checkpoint:
            kind.checkpoint, attempts, rehearsed = checkpoint, 0, 0
            for step in checkpoint.steps(steps):
                attempts += step.number == lost_at
                if step.number == lost_at and attempts == attempt:
                    kind.accident = functools.partial(accident, number)
                with step:
                    step.loss = kind.block(step.number)
                kind.accident = None
                if step.finished:
                    kind.after(step.number)
                if number == 0:
                    tell([step.number, step.finished, step.rehearses])
                rehearsed += step.number == 2
                if step.number == 2 and rehearsed == asked_after:
                    wait_until_asked()
            tell(parameters(kind))
            os._exit(0)

    return train


def fails(_: int, tell: Callable[[Any], None]) -> None:
    """What a block raises in a rehearsal, with its notes."""
    wait_for_slots()
    watching.watch()
    dist.init_process_group("gloo")
    kind = changing_kinds.LeavesActivations()
    with se.Checkpointer(kind.state, rehearse=True) as checkpoint:
        try:
            for step in checkpoint.steps(REHEARSED):
                with step:
                    step.loss = kind.block(step.number)
        except RuntimeError as error:
            tell([str(error), *error.__notes__])
        os._exit(0)


def hear_more() -> None:
    rehearsed = RehearsalRecord.rehearsed

    def more(record: RehearsalRecord, *args: Any, **told: Any) -> RehearsalRecord:
        found = rehearsed(record, *args, **told)
        return replace(found, ranks=(*found.ranks, 2), later=found.later + 1)

    RehearsalRecord.rehearsed = more  # type: ignore[assignment, method-assign]


def accident(number: int) -> None:
    if number == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == ASKED_BEFORE:
        wait_until_asked()


def wait_until_asked() -> None:
    deadline = time.monotonic() + PATIENT
    while not groups.is_closed:
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def asks_after(attempt: int) -> Callable[[Agent, Worker, Any], None]:
    """Return what asks all workers to rest once the rehearsed step was attempted so often."""
    attempts = itertools.count(1)

    def told(agent: Agent, _: Worker, what: Any) -> None:
        if what[0] == 2 and len(what) == 3 and next(attempts) == attempt:
            agent.rest()

    return told


def alone(number: int, tell: Callable[[Any], None]) -> None:
    """Each kind in one process, without a Checkpointer and with no loss."""
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    found = {}
    for make in RIGHT:
        kind = make()
        kind.checkpoint = SimpleNamespace(batches=itertools.cycle)
        for step in range(1, STEPS + 1):
            kind.block(step)
        found[make.__name__] = parameters(kind)
    for name, values in found.items():
        tell([name, values])


class Committed(Daemon):
    """Of which the newest commit is restored, by workers that cannot keep their state."""

    @property
    def has_committed(self) -> bool:
        return self._node.agent.status().commit is not None

    def source(self) -> Resume:
        commit = self._node.agent.status().commit
        assert commit is not None
        return Resume("store", commit.step, epoch=commit.epoch)


def trained(
    folder: Path,
    make: type[Plain],
    count: int,
    steps: int,
    lost_at: int,
    attempt: int = 1,
    unlike: int = -1,
    asked_after: int = 0,
    knows_more: int = -1,
) -> Agent:
    name, heard = f"{make.__name__}-{attempt}-{asked_after}-{knows_more}", []

    def hears(event: messages.DaemonEvent) -> None:
        if isinstance(event, messages.Rehearsed | messages.SaveFailed):
            heard.append(event.message)

    (folder / f"{name}-daemon").mkdir()
    with cluster(folder / f"{name}-daemon", workers=count) as [node]:
        daemon = Committed(node, 0)
        node.agent.subscribe(hears)
        plan = Plan(
            begins=daemon.begins,
            restores_from=daemon.source,
            node=node.name,
            on_told=asks_after(asked_after) if asked_after else None,
        )
        trains = script(make, steps, lost_at, attempt, unlike, asked_after, knows_more)
        if make is changing_kinds.LeavesActivations:
            trains = fails
        agent = run(count, trains, folder / name, plan, str(node.socket))
        agent.heard = heard
        return agent


CASES: dict[str, Case] = {
    "alone-kinds": lambda folder: run(1, alone, folder / "alone", Plan()),
    **{
        make.__name__: functools.partial(
            trained,
            make=make,
            count=3,
            steps=STEPS,
            lost_at=LATER_LOST.get(make.__name__, LOST_AT),
        )
        for make in RIGHT
    },
    **{
        f"{make.__name__}-lost-in-{attempt}": functools.partial(
            trained, make=make, count=3, steps=STEPS, lost_at=2, attempt=attempt
        )
        for make, attempts in LOST_WITHIN.items()
        for attempt in attempts
    },
    **{
        f"{make.__name__}-asked-after-{attempt}": functools.partial(
            trained, make=make, count=3, steps=STEPS, lost_at=0, asked_after=attempt
        )
        for make, attempts in ASKED_AFTER.items()
        for attempt in attempts
    },
    **{
        f"Plain-knows-more-{number}": functools.partial(
            trained, make=Plain, count=3, steps=STEPS, lost_at=LOST_AT, knows_more=number
        )
        for number in (0, ASKED_BEFORE)
    },
    **{
        f"Plain-unlike-{unlike}": functools.partial(
            trained, make=Plain, count=3, steps=STEPS, lost_at=LOST_AT, unlike=unlike
        )
        for unlike in (0, VICTIM)
    },
    **{
        make.__name__: functools.partial(trained, make=make, count=2, steps=REHEARSED, lost_at=0)
        for make in (
            *(*loop_kinds.NAMED, *loop_kinds.EQUAL, *loop_kinds.WARNED),
            *(*changing_kinds.NAMED, *changing_kinds.WARNED, changing_kinds.LeavesActivations),
        )
    },
}
