"""Simulates how a daemon uploads its saves, in virtual time: one at a time, until it is committed.

In place of `commit/upload_pipeline.py`, and to be kept like it. Left out: a save's single files.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spotelastic_checkpoints.commit import upload_cadence
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import Fenced, StorageUnavailable, SupersededByNewerEpoch
from spotelastic_checkpoints.messages import Committed, Superseded
from spotelastic_checkpoints.types import Commit, Snapshot
from support.saving.commit_protocol import put_part

if TYPE_CHECKING:
    from support.simulation.virtual_node import SimNode

LOOK, LONGEST_LOOK = 0.05, 1.0
"""Seconds between looks for the other nodes' parts."""
RETRY = 1.0
"""Seconds until a store that did not answer is asked again."""


@dataclass(frozen=True, slots=True)
class VirtualSave:
    """This node's part of a save."""

    commit: Commit
    snapshot: Snapshot


class _Overwritten(Exception):
    """The save has lost its slot to a later one."""


class VirtualUploads:
    """The uploads of one daemon, from its start to its end."""

    def __init__(
        self,
        node: "SimNode",
        commits: Commits,
        holds: Callable[[Snapshot], bool],
        overwritten: Callable[[], None],
    ) -> None:
        """`holds` tells whether a slot still has a save; `overwritten` is called when a save has
        lost its slot and no newer one waits."""
        self.commits = commits
        self.epoch = 0
        """Of the current round, under which LATEST may be moved."""
        self.newest: Commit | None = None
        """The newest commit that LATEST is known to name."""
        self.settled: Commit | None = None
        """The newest save that needs no more work: it is committed, or of no use."""
        self._node, self._world = node, node.world
        self._holds, self._overwritten = holds, overwritten
        self._wanted: VirtualSave | None = None
        self._active: VirtualSave | None = None
        self._sent = False
        self._away = False
        self._outrun: VirtualSave | None = None
        """A complete save that a newer epoch kept from being committed."""
        self._begun = 0.0
        self._ended = False

    def end(self) -> None:
        """The daemon dies: what is on its way never arrives."""
        self._ended = True

    @property
    def pinned(self) -> list[Snapshot]:
        """Whose slots are overwritten only if no other is free."""
        active = None if self._sent else self._active
        return [save.snapshot for save in (active, self._wanted) if save is not None]

    @property
    def in_use(self) -> list[Snapshot]:
        """Whose slots are not overwritten even then."""
        resting = self._active.snapshot if self._away and self._active is not None else None
        return [each for each in self.pinned if each != resting]

    @property
    def _upload(self) -> float:
        """Seconds that this node's part takes."""
        return self._world.upload * self._node.slowness

    def busy(self) -> bool:
        return self._active is not None or self._wanted is not None

    def want(self, save: VirtualSave) -> bool:
        """Uploads this save next. False: it is old or known."""
        known = [each.commit for each in (self._active, self._wanted) if each is not None]
        if self.settled is not None:
            known.append(self.settled)
        if known and save.commit <= max(known):
            return False
        self._wanted = save
        if self._active is not None and not self._sent and self._goes_first():
            self._active = None
        self._next()
        return True

    def _goes_first(self) -> bool:
        deadline = self._world.hurried.get(self._node.name)
        if deadline is None:
            return False
        upload, now = self._upload, self._world.now
        left = max(0.0, 1.0 - (now - self._begun) / upload)
        return upload_cadence.goes_first(1000, round(1000 * left), 1000 * (deadline - now) / upload)

    def adopt(self, epoch: int, keep: Callable[[Snapshot], bool]) -> None:
        """Goes on with a new round's epoch, and with what is of its history."""
        self.epoch = epoch
        if self._wanted is not None and not keep(self._wanted.snapshot):
            self._wanted = None
        if self._active is not None and not keep(self._active.snapshot):
            self._active = None
        outrun, self._outrun = self._outrun, None
        if outrun is not None and self._wanted is None and keep(outrun.snapshot):
            self._wanted = outrun
        self._next()

    def give_way(self) -> bool:
        """Gives up the save that would be committed last. False: none holds a slot."""
        if self._wanted is not None:
            self._wanted = None
        elif self._active is not None and not self._sent:
            self._active = None
        else:
            return False
        return True

    def learned(self, commit: Commit | None) -> None:
        if commit is not None and (self.newest is None or commit > self.newest):
            self.newest = commit

    def _next(self) -> None:
        if self._active is None and self._wanted is not None:
            save, self._wanted = self._wanted, None
            self._active, self._sent, self._begun = save, False, self._world.now
            self._go_on(save, self._finish(save))

    def _go_on(self, save: VirtualSave, work: Iterator[float]) -> None:
        if self._ended or not self._node.alive or self._active is not save:
            return  # given up
        pause = next(work, None)
        if pause is not None:
            self._world.after(pause, partial(self._go_on, save, work))
        elif self._active is save:
            self._active = None
            self._next()

    def _finish(self, save: VirtualSave) -> Iterator[float]:
        """Works on the save, with a pause in seconds after each part of the work."""
        while True:
            try:
                yield from self._send(save)
                yield from self._record(save)
                return
            except StorageUnavailable:
                self._away = True
                if self._wanted is not None:
                    return
                yield RETRY
            except SupersededByNewerEpoch:
                self._outrun = save
                self._settle(save.commit)
                self._node.post(Superseded(max(self.epoch, save.commit.epoch)))
                return
            except Fenced:
                self._settle(save.commit)
                return
            except _Overwritten:
                self._settle(save.commit)
                if self._wanted is None:
                    self._overwritten()
                return

    def _send(self, save: VirtualSave) -> Iterator[float]:
        ranks, size = save.snapshot.ranks, save.snapshot.world_size
        if not all(self.commits.has_manifest(save.commit, rank) for rank in ranks):
            yield self._upload
            if not self._holds(save.snapshot):
                raise _Overwritten
            for rank in ranks:
                put_part(self.commits, save.commit, rank, size, save.snapshot.incarnation)
        self._sent, self._away = True, False

    def _record(self, save: VirtualSave) -> Iterator[float]:
        """Waits for the other nodes' parts. A newer save goes first."""
        look = LOOK
        while not self.commits.commit(save.commit, max(self.epoch, save.commit.epoch)):
            if self._wanted is not None:
                return
            yield look
            look = min(1.5 * look, LONGEST_LOOK)
        self._settle(save.commit)
        self.learned(save.commit)
        self._node.post(Committed(save.commit.epoch, save.commit.step, self._node.now))

    def _settle(self, commit: Commit) -> None:
        self.settled = max(commit, self.settled or commit)
