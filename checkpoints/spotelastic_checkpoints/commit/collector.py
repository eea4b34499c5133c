"""Removes old checkpoints in the background after each commit, one collection at a time.

A save must never wait for this: to list and delete may take an object store longer than an
interruption notice leaves. A collection and an upload never touch the same folder, since only steps
older than the newest commit are removed and only newer ones are uploaded.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

from spotelastic_checkpoints.commit import retention
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.types import Commit, StepPoint

T = TypeVar("T")


class Collector:
    """Runs collections one after the other in the daemon's event loop.

    Blocking calls go to `executor`.
    """

    def __init__(
        self,
        commits: Callable[[], Commits],
        tell_problem: Callable[[str], None],
        executor: Executor,
        keep: Keep,
    ) -> None:
        """`tell_problem` is called with a message when collections begin to fail."""
        self._commits = commits
        self._tell_problem = tell_problem
        self._executor = executor
        self._keep = keep
        self._due: tuple[Commit, int] | None = None
        self._wake = asyncio.Event()
        self._read = 0
        """Epoch in which all commit records were last read, which is done once per epoch: there may
        be hundreds.
        """
        self._swept = 0
        """Epoch in which unfinished uploads of earlier epochs were last aborted. Not every user may
        do that, so it is done once per epoch.
        """
        self._not_finite: int | None = None
        """The step since which no loss of this node's was finite; 0: they are; None: it has seen
        none.
        """
        self._noted: int | None = None
        """The same, as it was put on record last."""
        self._epoch = 0
        self.on = False
        """Whether this node collects. One node of each round does, unless it has an interruption
        notice.
        """
        self.busy = False
        """Whether a collection is running or due."""
        self.problem = ""
        """Why the last collection failed; empty if it succeeded."""

    def committed(self, commit: Commit, epoch: int) -> None:
        """Start a collection because LATEST now names `commit`. `epoch` is the current round's.

        Replaces a collection that is due and has not begun.
        """
        if self.on:
            self._due, self.busy = (commit, epoch), True
            self._wake.set()

    def seen(self, points: Iterable[StepPoint], epoch: int) -> None:
        """Take note of losses in an epoch. Call it before `committed` with all that are known."""
        self._epoch = epoch
        for point in points:
            if point.loss is not None:
                is_bad = not math.isfinite(point.loss)
                self._not_finite = (self._not_finite or point.step) if is_bad else 0
        if self._not_finite != self._noted:
            self._wake.set()

    def found_good(self, step: int) -> None:
        """Keep the newest commit up to this step: an audit has found it right."""
        self._keep = replace(self._keep, good=max(step, self._keep.good))

    async def run(self) -> None:
        """Carry out the collections that become due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._note()
            due, self._due = self._due, None
            if due is not None:
                await self._collect(*due)
            self.busy = self._due is not None

    async def _collect(self, latest: Commit, epoch: int) -> None:
        if self._not_finite != self._noted or self._not_finite:
            return
        try:
            if await self._in_thread(retention.is_held):
                return
            thorough = self._read != epoch
            await self._in_thread(retention.collect, latest, epoch, self._keep, thorough)
            self._read = epoch
            if self._swept != epoch == latest.epoch:
                await self._in_thread(retention.sweep_uploads, epoch)
                self._swept = epoch
        except CheckpointsError as error:
            self._complain(f"old checkpoints were not collected: {error}")
        else:
            self.problem = ""

    async def _note(self) -> None:
        """Put on record whether losses are finite. Until that is done nothing is collected."""
        now, before = self._not_finite, self._noted
        if now == before:
            return
        try:
            if now:
                await self._in_thread(retention.hold, self._epoch, now)
            else:
                await self._in_thread(retention.let_go)
        except CheckpointsError as error:
            self._complain(f"old checkpoints are kept: {error}")
            return
        self._noted, self.problem = now, ""
        if now and not before:
            self._tell_problem(
                f"the loss has not been finite since step {now}: no checkpoint is deleted until it "
                "is"
            )

    def _complain(self, problem: str) -> None:
        """Report a problem once, until another takes its place or collections succeed."""
        if problem != self.problem:
            self._tell_problem(problem)
        self.problem = problem

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, self._commits(), *arguments)
