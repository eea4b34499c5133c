"""Folds what happens to a node's workers into what its agent knows of them (pure).

A part of `observe.py`, which alone calls it.
"""

import math
from dataclasses import replace
from functools import singledispatch

from spotelastic_checkpoints import messages

from spotelastic.agent.state import events
from spotelastic.agent.state.silence import listened
from spotelastic.agent.state.values import WorkerExit, Workers, local_rank_of, look

REST_WITHIN = 5.0
"""Seconds in which workers that were asked to rest do so, before they are killed; a step comes on
top. It is far less than the others wait for this node, and long for one whose machine is busy.
"""
SAVED_WITHIN = 20.0
"""The most seconds for that, and those for workers that save what they have before. It is less than
the half minute within which a node has to be ready.
"""
PRESENT_WITHIN = 5.0
"""Seconds in which a worker that rests answers when it is told of a round."""
ANSWER_WITHIN = 10.0
"""Seconds in which a worker that is entering a round answers. It may be busy meanwhile."""
ASK_EVERY = 2.0
GONE_WITHIN = 30.0
"""Seconds after SIGKILL in which a process ends, unless a driver or a file system keeps it. A GPU
takes a few to free its memory.
"""


@singledispatch
def changed(event: events.LocalEvent, workers: Workers, now: float) -> Workers:
    """Return the workers after one kind of event: each has a function below."""
    raise TypeError(f"nothing is known of {event!r}")


# -- their ends -----------------------------------------------------------------------------------


@changed.register
def _(event: events.Exited, workers: Workers, now: float) -> Workers:
    if event.id not in workers.alive:
        return workers
    ours = workers.killed and event.id not in workers.ended
    exits = workers.exits if ours else _exits(workers, event.id, event.code, now)
    if event.gone:
        return replace(workers, alive=workers.alive - {event.id}, exits=exits)
    # What it left behind is killed, unless it was asked to end and has time left for that.
    gone_by = min(workers.gone_by, now + GONE_WITHIN) if workers.kill_at == math.inf else math.inf
    return replace(workers, exits=exits, gone_by=gone_by)


@changed.register
def _(event: events.WorkerFailing, workers: Workers, now: float) -> Workers:
    """Take a worker for alive until its end is reported."""
    if event.id not in workers.alive or workers.killed:
        return workers
    exits = _exits(workers, event.id, event.code, now)
    return replace(workers, exits=exits, failing=workers.failing | {event.id})


def _exits(workers: Workers, worker: str, code: int, now: float) -> tuple[WorkerExit, ...]:
    """Return the exits with that of one worker, whose first report counts."""
    rank = local_rank_of(worker)
    if any(exit_.local_rank == rank for exit_ in workers.exits):
        return workers.exits
    return (*workers.exits, WorkerExit(rank, code, now))


@changed.register
def _(event: events.WorkersKilled, workers: Workers, now: float) -> Workers:
    kill_at, gone_by = event.kill_at, math.inf
    if kill_at is None:
        kill_at, gone_by = math.inf, min(workers.gone_by, now + GONE_WITHIN)
    ended = workers.ended if workers.killed else event.ended & workers.alive
    workers = replace(workers, killed=True, ended=ended)
    return replace(workers, kill_at=kill_at, gone_by=gone_by, failing=event.spared)


@changed.register
def _(event: events.FailureReported, workers: Workers, now: float) -> Workers:
    return replace(workers, failed=True, told_broken=event.broken)


# -- in-place recovery ----------------------------------------------------------------------------


@changed.register
def _(event: events.WorkerListens, workers: Workers, now: float) -> Workers:
    if event.round != workers.round:
        return workers
    return replace(workers, listening=workers.listening | {event.local_rank}, can_rest=True)


@changed.register
def _(event: events.WorkerDeaf, workers: Workers, now: float) -> Workers:
    gone = {event.local_rank}
    return replace(workers, listening=workers.listening - gone, awaited=workers.awaited - gone)


@changed.register
def _(event: events.WorkerRests, workers: Workers, now: float) -> Workers:
    if event.round != workers.round or workers.killed:
        return workers
    broken = workers.broken
    if event.broken and broken is None:
        broken = (event.local_rank, event.broken, event.traceback)
    rested = {**workers.rested, event.local_rank: event.standing}
    return replace(workers, rested=rested, broken=broken)


def asked_to_rest(workers: Workers, step_time: float, now: float) -> Workers:
    """Return the workers once they were asked to rest.

    One that is within a step that takes so many seconds is woken by nothing before its next
    collective.
    """
    within = SAVED_WITHIN if workers.save_first else min(SAVED_WITHIN, REST_WITHIN + step_time)
    return replace(workers, rest_by=now + within)


@changed.register
def _(event: events.WorkerPresent, workers: Workers, now: float) -> Workers:
    if event.round != workers.round:
        return workers
    if event.saves:
        asked = workers.rest_by < math.inf
        rest_by = max(workers.rest_by, now + SAVED_WITHIN) if asked else math.inf
        return replace(workers, save_first=True, rest_by=rest_by)
    awaited = workers.awaited - {event.local_rank}
    if awaited or not workers.awaited:
        return replace(workers, awaited=awaited)
    return replace(workers, awaited=awaited, answer_by=math.inf, ask_at=now + ASK_EVERY)


@changed.register
def _(event: events.WorkersAsked, workers: Workers, now: float) -> Workers:
    asked = locals_of(workers) & workers.listening
    return replace(workers, awaited=asked, answer_by=now + ANSWER_WITHIN)


def locals_of(workers: Workers) -> frozenset[int]:
    """Return the local ranks of those that live."""
    return frozenset(map(local_rank_of, workers.alive))


# -- how far they are -----------------------------------------------------------------------------


@changed.register
def _(event: events.EpochAdopted, workers: Workers, now: float) -> Workers:
    return replace(workers, epoch=event.epoch)


@changed.register
def _(event: events.StacksRequested, workers: Workers, now: float) -> Workers:
    return replace(workers, dumped_at=now)


@changed.register
def _(event: events.StepsRead, workers: Workers, now: float) -> Workers:
    return replace(workers, pace=look(workers.pace, event.workers, now))


@changed.register
def _(event: events.StepsHeard, workers: Workers, now: float) -> Workers:
    return replace(workers, silence=listened(workers.silence, event.workers, now))


@changed.register
def _(event: events.StandingRequested, workers: Workers, now: float) -> Workers:
    return replace(workers, silence=replace(workers.silence, asked_at=now))


@changed.register
def _(event: events.SilenceReported, workers: Workers, now: float) -> Workers:
    silence = workers.silence
    silence = replace(silence, asked_at=0.0, told=silence.told + 1, line=event.line)
    return replace(workers, silence=silence)


@changed.register
def _(event: messages.Attached, workers: Workers, now: float) -> Workers:
    return replace(workers, attached=True, left=False)


@changed.register
def _(event: messages.WorkerLeft, workers: Workers, now: float) -> Workers:
    return replace(workers, left=True)


@changed.register
def _(event: messages.Sealed, workers: Workers, now: float) -> Workers:
    return replace(workers, waiting_at=event.step) if event.waiting else workers
