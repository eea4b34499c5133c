"""Restores what a round resumes from on all ranks alike, or an older checkpoint if it is damaged.

Every rank fetches the source, then all hear whether each could. A source that one of them cannot
have, because a shard is damaged or a node has died since, is left by all, for the newest commit
before it. A store or a daemon that does not answer says nothing about the source. Nor does a store
that may not be read, or a node without room for what it fetches. No rank goes back for these.

Tensors are filled while the rest is still being fetched. When ranks go back, all tensors are filled
again. Collectives are allowed here, since no rank trains yet.
"""

import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotelastic_checkpoints.errors import (
    ArenaFull,
    CheckpointsError,
    DaemonUnavailable,
    StorageRefused,
    StorageUnavailable,
)
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.types import Commit, Range, Resume

from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable, UsageError
from spotelastic.training.restore.restored import RestoreSource
from spotelastic.training.restore.streaming import AHEAD, Window
from spotelastic.training.runtime.session import Ranks, WorkerSession
from spotelastic.training.state.compatibility import Misfit, misfit_of_all
from spotelastic.training.state.state import State

BRANCH = "branch"
"""Name of the saved value that says to which step the run was sent back last."""
NO_BRANCH = -1
"""Says that the run was never sent back. (An imported checkpoint may be of step 0.)"""


@dataclass(frozen=True)
class RestorePatience:
    """How long a restore waits, in seconds."""

    fetch_within: float = 600.0
    """For anything to be fetched; the daemon's own deadlines are shorter."""
    room_within: float = 60.0
    """For memory."""
    look_every: float = 0.5
    """Between attempts while there is no memory."""
    find_within: float = 400.0
    """For an older commit to be found. The daemon waits for a store that does not answer."""


def open_source(
    session: WorkerSession,
    client: WorkerClient,
    state: State,
    step: int | None,
    patience: RestorePatience = RestorePatience(),
    *,
    limit: float = math.inf,
) -> RestoreSource | None:
    """Fetch what `state` needs on this rank, and return the source; None on a fresh run.

    All ranks call it. `step` sends the run back to that commit, once: when it has gone on from
    there and was only restarted since, it goes on from its newest state. Of no step after `limit`
    anything is restored without being asked for. Raises as `Checkpointer.restore` says.
    """
    return _Resuming(session, client, state, patience, limit).open(step)


def open_exactly(
    session: WorkerSession,
    client: WorkerClient,
    state: State,
) -> RestoreSource:
    """Fetch the session's source as `open_source` does, and no other one in its place.

    All ranks call it. Raises `SpotelasticError` where one of them cannot have it.
    """
    source = session.resume
    restored, problem = _Resuming(session, client, state, RestorePatience()).fetch(source)
    if restored is None:
        raise SpotelasticError(f"step {source.step} cannot be restored: {problem}")
    return restored


class _Misfits:
    """What of a source does not fit the state of the ranks.

    Each rank tells all others, once per source. A rank that could not look at the
    source has nothing to tell.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._of_all: Misfit | None = None

    def of_all(self, own: Misfit) -> Misfit:
        """Return what does not fit any rank, given what does not fit this one."""
        if self._of_all is None:
            self._of_all = self._gathered(own)
        return self._of_all

    def settle(self) -> None:
        """Take part in the exchange where this rank has not yet, because the others wait for it."""
        if self._of_all is None:
            self._of_all = self._gathered(None)

    def _gathered(self, own: Misfit | None) -> Misfit:
        found = self._ranks.gather(own)
        known = [misfit for misfit in found if misfit is not None]
        # What seems to be missing may belong to a rank that could not look. All leave the source
        # then.
        return misfit_of_all(known) if len(known) == len(found) else Misfit()


@dataclass(frozen=True)
class _Resuming:
    """One rank's part in `open_source`."""

    session: WorkerSession
    client: WorkerClient
    state: State
    patience: RestorePatience
    limit: float = math.inf

    def open(self, step: int | None) -> RestoreSource | None:
        """As `open_source`."""
        source = self.session.resume
        if step is None:
            return self._fetch_or_go_back(source) if source.kind != "fresh" else None
        if self.session.restarts and source.kind != "fresh":
            newest = self._fetch_or_go_back(source)
            if newest.own_value(BRANCH) == step:
                return newest
            self.client.restored(newest.ident)
        commit = self._find(step=step)
        if commit is None:
            raise UsageError(
                f"restore(step={step}): this step was not committed; "
                "`spotelastic ckpt ls` shows those that were"
            )
        restored, problem = self.fetch(_from_store(commit))
        if restored is None:
            raise SpotelasticError(f"cannot resume from step {step}: {problem}")
        return restored

    def _fetch_or_go_back(self, source: Resume) -> RestoreSource:
        restored, problem = None, f"all was right up to step {self.limit:.0f} only"
        if source.step <= self.limit:
            restored, problem = self.fetch(source)
        if restored is not None:
            return restored
        before = Commit(source.epoch, source.step) if source.kind == "store" else None
        while (commit := self._find(before=before)) is not None:
            before = commit
            if commit.step > self.limit:
                continue
            message = (
                f"step {source.step} cannot be restored ({problem}): going back to {commit.step}"
            )
            if self.session.ranks.leads:
                print(f"spotelastic: {message}", file=sys.stderr, flush=True)
                # An agent makes an event of it; a script's own daemon would print it a second time.
                if self.session.restarts:
                    self.client.complain(message)
            restored, problem = self.fetch(_from_store(commit))
            if restored is not None:
                return restored
        raise SpotelasticError(
            f"cannot resume from step {source.step}: {problem}; there is no commit before it"
        )

    def fetch(self, source: Resume) -> tuple[RestoreSource | None, str]:
        """Fetch the source on all ranks. Returns it if all have it, or else None and why.

        Raises `Unavailable`, or `EnvironmentFailure` where room or a right is missing, when that
        says nothing about the source.
        """
        restored, problem = None, ""
        other: type[SpotelasticError] | None = None
        misfits = _Misfits(self.session.ranks)
        try:
            restored = self._brought_into_room(source, misfits)
        except (DaemonUnavailable, StorageUnavailable) as error:
            problem, other = str(error), Unavailable
        except (ArenaFull, StorageRefused) as error:
            problem, other = f"{self.session.ranks.node}: {error}", EnvironmentFailure
        except CheckpointsError as error:
            problem = str(error)
        misfits.settle()
        problems = [told for told in self.session.ranks.gather((problem, other)) if told[0]]
        if not problems:
            return restored, ""
        if restored is not None:
            self.client.restored(restored.ident)
        for problem, other in problems:
            if other is not None:
                raise other(f"cannot resume from step {source.step}: {problem}")
        return None, problems[0][0]

    def _brought_into_room(self, source: Resume, misfits: _Misfits) -> RestoreSource:
        """Fetch the source, and wait for memory if it is missing. That is reported once."""
        deadline: float | None = None
        while True:
            try:
                return self._brought(source, misfits)
            except ArenaFull as error:
                # The deadline counts from here, because a restore may have gone on for long before.
                if deadline is None:
                    deadline = time.monotonic() + self.patience.room_within
                    self.client.complain(f"a restore is waiting for memory: {error}")
                if time.monotonic() > deadline:
                    raise
                time.sleep(self.patience.look_every)

    def _brought(self, source: Resume, misfits: _Misfits) -> RestoreSource:
        """Fetch the source for as long as that makes progress.

        It begins again when a daemon dies.
        """
        deadline, most = time.monotonic() + self.patience.fetch_within, 0
        while True:
            opened = self.client.open(source, self.patience.fetch_within)
            contents = Contents(opened)
            try:
                restored = RestoreSource(contents, source, afresh=self.session.afresh)
                needs = restored.needs(self.state, self.session.ranks.rank, misfits.of_all)
                self._stream(restored, needs)
            except DaemonUnavailable:
                come = restored.read_to + contents.brought
                if come > most:
                    deadline, most = time.monotonic() + self.patience.fetch_within, come
                elif time.monotonic() > deadline:
                    raise
            except CheckpointsError:
                self.client.restored(opened.id)
                raise
            else:
                return restored

    def _stream(self, restored: RestoreSource, needs: Sequence[Range]) -> None:
        """Fetch what this rank needs, and fill tensors that are as they were saved on the way."""
        windows, asked = restored.windows(), AHEAD
        ahead = _ranges(windows[:asked])
        self.client.fetch(restored.ident, needs, self.patience.fetch_within, ahead=ahead)
        restored.match_groups(self.state)
        for number, window in enumerate(windows, 1):
            ahead = _ranges(windows[asked : number + AHEAD])
            moved = self.client.fetch(
                restored.ident,
                window.ranges,
                self.patience.fetch_within,
                ahead=ahead,
                passed=window.start,
            )
            asked = number + AHEAD
            restored.fill(window, moved)

    def _find(self, *, step: int | None = None, before: Commit | None = None) -> Commit | None:
        """Find a commit by rank 0 and tell all ranks."""
        found: tuple[Commit | None, str] = None, ""
        if self.session.ranks.leads:
            try:
                found = self.client.find(self.patience.find_within, step=step, before=before), ""
            except CheckpointsError as error:
                found = None, str(error)
        commit, problem = self.session.ranks.gather(found)[0]
        if problem:
            raise SpotelasticError(f"cannot look for an earlier checkpoint: {problem}")
        return commit


def _ranges(windows: Iterable[Window]) -> list[Range]:
    return [wanted for window in windows for wanted in window.ranges]


def _from_store(commit: Commit) -> Resume:
    return Resume("store", commit.step, epoch=commit.epoch)
