"""Has nodes and workers of a job be lost and come, and tells what that cost the others."""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from common.agents import START_WITHIN, Job, Line
from common.measuring import until

PATIENCE = 60.0
"""Seconds after which an event counts as never recovered from."""
SETTLED = 20
"""Steps of every node in one group before each event."""
LOOK = 0.02


class Ended(Exception):
    """A survivor's process ended by itself, and nothing starts it again."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one event cost: the time from `since` to `until`, on the monotonic clock."""

    since: float
    until: float
    lost: int = 0
    """Optimizer steps that survivors made again."""
    replaced: int = 0
    """Survivors that went on in another process."""
    refused: int = 0
    """Attempts of survivors that were given up, without a step of an optimizer."""
    build: float = 0.0
    """Seconds that survivors took to make a model for the ranks that were left."""

    @property
    def seconds(self) -> float:
        return self.until - self.since


def begin(job: Job, nodes: int) -> None:
    """Start the nodes, and wait until all train together."""
    for _ in range(nodes):
        job.add()
    settle(job)


def settle(job: Job, within: float = START_WITHIN) -> dict[str, Line]:
    """Wait until all nodes train together for a while; return the last line of each."""
    size = len(job.agents)

    def together(node: str) -> bool:
        lines = job.lines(node)[-SETTLED:]
        return len(lines) == SETTLED and all(
            line.what == "step" and line.world == size and line.group == lines[-1].group
            for line in lines
        )

    def settled() -> bool:
        _check(job, [*job.agents])
        return all(map(together, job.agents))

    until(settled, f"training of {size} nodes", within=within)
    return {node: job.lines(node)[-1] for node in job.agents}


def lose(job: Job, victim: str, strike: Callable[[], object]) -> Sample:
    """Let a node or its worker be lost, and wait until all others step in another group."""
    before = settle(job)
    stay = [node for node in job.agents if node != victim]
    time.sleep(random.uniform(0, LOOK))
    at = time.monotonic()
    strike()
    first = until(
        lambda: _resumed(job, stay, before, at), "survivors step", within=PATIENCE, every=LOOK
    )
    lost = refused = 0
    for node in stay:
        old = [line for line in job.lines(node) if line.at < first[node].at]
        last = max(line.step for line in old if line.what == "step")
        lost = max(lost, last + 1 - first[node].step)
        refused += sum(line.what == "refused" and line.at > at for line in old)
    replaced = sum(first[node].pid != before[node].pid for node in stay)
    ended = max(line.at for line in first.values())
    build = max(_building(job.lines(node), at, ended) for node in stay)
    return Sample(at, ended, lost, replaced, refused, build)


def _building(lines: Sequence[Line], since: float, until: float) -> float:
    """Return the seconds in which a node has made its model in this time."""
    marks = [
        line for line in lines if since < line.at < until and line.what in ("building", "built")
    ]
    return sum(
        ended.at - begun.at
        for begun, ended in itertools.pairwise(marks)
        if (begun.what, ended.what) == ("building", "built")
    )


def _resumed(job: Job, stay: Sequence[str], before: dict[str, Line], at: float) -> dict[str, Line]:
    """Return the first step of each survivor in another group; empty until all have made it."""
    _check(job, stay)
    found = {}
    for node in stay:
        for line in reversed(job.lines(node)):
            if line.at <= at:
                break
            if line.what == "step" and line.group != before[node].group:
                found[node] = line
    return found if len(found) == len(stay) else {}


def arrive(job: Job) -> Sample:
    """Let a node come, and return the longest gap of the others until all train together."""
    stay = [*job.agents]
    before = settle(job)
    at = time.monotonic()
    joined = job.add()
    settle(job, PATIENCE)
    new = min(line.at for line in job.lines(joined) if line.what == "step")
    gaps: list[tuple[float, float]] = []
    lost = 0
    for node in stay:
        steps = [line for line in job.lines(node) if line.what == "step"]
        near = [line for line in steps if line.at >= before[node].at and line.at < new + 1]
        pairs = [*itertools.pairwise(near)]
        gaps.extend((line.at, later.at) for line, later in pairs if later.at > at)
        lost = max(lost, *(line.step + 1 - later.step for line, later in pairs))
    replaced = sum(job.lines(node)[-1].pid != before[node].pid for node in stay)
    since, ended = max(gaps, key=lambda gap: gap[1] - gap[0])
    return Sample(since, ended, lost, replaced)


def _check(job: Job, nodes: Sequence[str]) -> None:
    for node in nodes:
        if job.agents[node].poll() is not None:
            raise Ended(f"{node} ended: {job.last_words(node)}")


def strike(job: Job, event: str, victim: str) -> Sample:
    """Let an event of a loss happen to a node."""
    match event:
        case "worker":
            return lose(job, victim, partial(os.kill, job.worker(victim), signal.SIGKILL))
        case "node":
            return lose(job, victim, partial(job.signal_all, victim, signal.SIGKILL))
        case _:
            return lose(job, victim, partial(job.signal_all, victim, signal.SIGSTOP))
