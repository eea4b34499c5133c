"""Collects old checkpoints after a commit, one collection at a time, beside the uploads.

Must never happen: a save waits for a collection. A store may take longer to list and to delete what
it holds than a notice leaves. What goes is older than the newest commit, and what is on its way is
newer, so that the two never meet in a folder.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from spotelastic_checkpoints.commit import retention
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.types import Commit


class Collector:
    """Lives in the daemon's event loop; what takes time runs in `executor`."""

    def __init__(
        self,
        commits: Callable[[], Commits],
        tell_problem: Callable[[str], None],
        executor: Executor,
        keep: Keep,
    ) -> None:
        self._commits = commits
        self._tell_problem = tell_problem
        self._executor = executor
        self._keep = keep
        self._due: tuple[Commit, int] | None = None
        self._wake = asyncio.Event()
        self._read = 0
        """The epoch in which all records were read: they may be hundreds,"""
        self._swept = 0
        """and that in which unfinished uploads of earlier ones were ended: not everybody may."""
        self.on = False
        """Whether this node collects: one node per round does, while no notice is out for it."""
        self.busy = False
        self.problem = ""
        """Why the last collection came to nothing; empty when it did not."""

    def committed(self, commit: Commit, epoch: int) -> None:
        """LATEST names `commit` now; `epoch` is the current round's. Stands in for earlier ones
        whose collection has not begun."""
        if self.on:
            self._due, self.busy = (commit, epoch), True
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            due, self._due = self._due, None
            if due is not None:
                await self._collect(*due)
            self.busy = self._due is not None

    async def _collect(self, latest: Commit, epoch: int) -> None:
        try:
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

    def _complain(self, problem: str) -> None:
        """Once per outage."""
        if problem != self.problem:
            self._tell_problem(problem)
        self.problem = problem

    async def _in_thread(self, function: Callable[..., object], *arguments: object) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, function, self._commits(), *arguments)
