"""Chooses which sealed saves of a node are uploaded, and waits for their commits."""

import asyncio
import time
from collections.abc import Callable

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.commit.save_upload import Save
from spotelastic_checkpoints.commit.upload_cadence import Cadence
from spotelastic_checkpoints.commit.upload_pipeline import Pipeline
from spotelastic_checkpoints.daemon.daemon_state import DaemonState
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.types import Commit, RoundInfo


class DueSaves:
    """Hands sealed saves to the upload pipeline. All of it runs in the daemon's event loop."""

    def __init__(
        self, arena: Arena, pipeline: Pipeline, remembered: Callable[[], DaemonState]
    ) -> None:
        """`remembered` returns the current round and the epochs of earlier ones."""
        self._arena = arena
        self._pipeline = pipeline
        self._remembered = remembered
        self._settled = asyncio.Event()
        self._cadence = Cadence()
        self._flushes = 0
        """Number of flushes that are waiting for a commit."""
        self._overdue = False
        """Whether a save that was to be committed has been overwritten. The next save is sent in
        its place."""

    def begin(self) -> None:
        """Start to measure the cadence of uploads anew, for another round."""
        self._cadence = Cadence()

    def settled(self) -> None:
        """Wake the flushes: a save has been committed or given up."""
        self._settled.set()

    def want(self, *, every_save: bool = False) -> None:
        """Hand the newest complete save that is due (or just the newest) to the pipeline."""
        every_save = every_save or self._overdue
        remembered = self._remembered()
        round_ = remembered.round
        if round_ is None:
            return
        sealed = self._arena.sealed()
        snapshots = slots.snapshots(header for _, header in sealed)
        for snapshot in slots.newest_first(snapshots, round_):
            epoch = remembered.epochs.get(snapshot.incarnation, 0)
            save = snapshot.incarnation, snapshot.step, snapshot.layout
            members = slots.members(sealed, *save)
            due = every_save or any(header.due for _, header in members)
            if epoch and due and slots.on_lineage(round_, snapshot.incarnation, snapshot.step):
                commit = Commit(epoch, snapshot.step)
                if self._pipeline.want(Save(commit, snapshot.incarnation, tuple(members))):
                    self._overdue = False
                return

    def take_newest(self) -> None:
        """Hand over the newest save, due or not, now or as soon as there is one."""
        self._overdue = True
        self.want()

    def passes(self, request: messages.Sealing, round_: RoundInfo, *, in_haste: bool) -> bool:
        """Return whether this sealing starts an upload.

        It always does while a save is awaited because an earlier one was overwritten.
        """
        return self._is_its_turn(request, round_, in_haste) or self._overdue

    def _is_its_turn(self, request: messages.Sealing, round_: RoundInfo, in_haste: bool) -> bool:
        every = self._arena.pages[0].schedule.checkpoint_every
        alone = len(round_.members) == 1
        if request.waiting or alone or in_haste or self._flushes:
            return True
        if not request.due or not every or request.step % every:
            return request.due
        return self._cadence.passes(
            request.step // every, time.monotonic(), self._pipeline.upload_time
        )

    def has_paused(self) -> bool:
        """Return whether to send a save that was held back, as no other save follows."""
        return self._cadence.has_paused(time.monotonic())

    async def flush(self, timeout: float) -> bool:
        """Wait until the due saves are committed.

        Returns False if a commit failed, or after `timeout` seconds.
        """
        self._flushes += 1
        self.want()
        try:
            return await self._committed_within(timeout)
        finally:
            self._flushes -= 1

    async def _committed_within(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            due, done = self._newest_due(), self._pipeline.settled
            if due is None and not self._pipeline.busy():
                return True
            if due is not None and done is not None and done >= due and due.epoch:
                newest = self._pipeline.newest
                return newest is not None and newest >= due
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._settled.clear()
            try:
                await asyncio.wait_for(self._settled.wait(), left)
            except TimeoutError:
                pass

    def _newest_due(self) -> Commit | None:
        """Return the newest due step of the current round, even if only some local ranks sealed it.

        Its epoch is 0 while the round has none.
        """
        round_ = self._remembered().round
        if round_ is None:
            return None
        steps = [
            header.step
            for _, header in self._arena.sealed()
            if header.incarnation == round_.incarnation and header.due
        ]
        return Commit(round_.epoch, max(steps)) if steps else None
