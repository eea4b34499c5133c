"""What a round resumes from, the same on every rank: what it was told, or else further back.

Every rank fetches the source, then all hear how it went: a source that one of them cannot have (a
damaged shard, a peer that died since) is left by all, for the newest commit before it. A store or a
daemon that does not answer says nothing about the source, nor does a store that refuses to be read,
or a node without room for what it fetches: nobody goes back for that.

Tensors are filled while the rest still comes. Who goes back fills all of them again.

Collectives are allowed here; nobody trains yet.
"""

import sys
import time
from collections.abc import Iterable, Sequence

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

FETCH_WITHIN = 600.0
"""Seconds without anything coming to this node; the daemon's own deadlines are shorter."""
ROOM_WITHIN = 60.0
"""Seconds for others to give back memory that what is fetched needs,"""
LOOK_EVERY = 0.5
"""and between attempts."""
FIND_WITHIN = 400.0
"""For a look into the store, which the daemon waits for when it is away."""
BRANCH = "branch"
"""Name of our own value that says to which step the run was sent back last,"""
NO_BRANCH = -1
"""or that it never was: an imported checkpoint may be of step 0."""


def open_source(
    session: WorkerSession, client: WorkerClient, state: State, step: int | None
) -> RestoreSource | None:
    """What `state` needs of it is on this node, and so on all; None on a fresh run.

    `step` sends the run back to that commit, once: when it has gone on from there and was only
    restarted since, it goes on from its newest state.
    """
    source = session.resume
    if step is None:
        return _fetch_or_go_back(session, client, state, source) if source.kind != "fresh" else None
    if session.restarts and source.kind != "fresh":
        newest = _fetch_or_go_back(session, client, state, source)
        if newest.own_value(BRANCH) == step:
            return newest
        client.restored(newest.ident)
    commit = _find(session, client, step=step)
    if commit is None:
        raise UsageError(
            f"restore(step={step}): no such step was committed; "
            "`spotelastic ckpt ls` shows those that were"
        )
    restored, problem = _fetch(session, client, state, _from_store(commit))
    if restored is None:
        raise SpotelasticError(f"cannot resume from step {step}: {problem}")
    return restored


def _fetch_or_go_back(
    session: WorkerSession, client: WorkerClient, state: State, source: Resume
) -> RestoreSource:
    restored, problem = _fetch(session, client, state, source)
    if restored is not None:
        return restored
    before = Commit(source.epoch, source.step) if source.kind == "store" else None
    while (commit := _find(session, client, before=before)) is not None:
        message = f"step {source.step} cannot be restored ({problem}): going back to {commit.step}"
        if session.ranks.rank == 0:
            print(f"spotelastic: {message}", file=sys.stderr, flush=True)
            if session.restarts:  # an agent makes an event of it; an own daemon prints it again
                client.complain(message)
        restored, problem = _fetch(session, client, state, _from_store(commit))
        if restored is not None:
            return restored
        before = commit
    raise SpotelasticError(
        f"cannot resume from step {source.step}: {problem}; there is no commit before it"
    )


class _Misfits:
    """What of a source does not fit the ranks: told by all to all, once per source. A rank tells
    nothing where it could not look at the source."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._of_all: Misfit | None = None

    def of_all(self, own: Misfit) -> Misfit:
        if self._of_all is None:
            self._of_all = self._gathered(own)
        return self._of_all

    def settle(self) -> None:
        """The others wait for each rank's word."""
        if self._of_all is None:
            self._of_all = self._gathered(None)

    def _gathered(self, own: Misfit | None) -> Misfit:
        found = self._ranks.gather(own)
        known = [misfit for misfit in found if misfit is not None]
        # Names may be those of a rank that could not look; the source is left by all then.
        return misfit_of_all(known) if len(known) == len(found) else Misfit()


def _fetch(
    session: WorkerSession, client: WorkerClient, state: State, source: Resume
) -> tuple[RestoreSource | None, str]:
    """By all ranks: all have it, or none has, and why. Raises `Unavailable`, or where room or a
    right is missing `EnvironmentFailure`, when that is none of the source's fault."""
    restored, problem = None, ""
    other: type[SpotelasticError] | None = None
    misfits = _Misfits(session.ranks)
    try:
        restored = _brought_into_room(session, client, state, source, misfits)
    except (DaemonUnavailable, StorageUnavailable) as error:
        problem, other = str(error), Unavailable
    except (ArenaFull, StorageRefused) as error:
        problem, other = f"{session.ranks.node}: {error}", EnvironmentFailure
    except CheckpointsError as error:
        problem = str(error)
    misfits.settle()
    problems = [told for told in session.ranks.gather((problem, other)) if told[0]]
    if not problems:
        return restored, ""
    if restored is not None:
        client.restored(restored.ident)
    for problem, other in problems:
        if other is not None:
            raise other(f"cannot resume from step {source.step}: {problem}")
    return None, problems[0][0]


def _brought_into_room(
    session: WorkerSession,
    client: WorkerClient,
    state: State,
    source: Resume,
    misfits: _Misfits,
) -> RestoreSource:
    """Room that is missing is waited for, which is told once."""
    deadline: float | None = None
    while True:
        try:
            return _brought(session, client, state, source, misfits)
        except ArenaFull as error:
            if deadline is None:  # a restore may have gone on for long until then
                deadline = time.monotonic() + ROOM_WITHIN
                client.complain(f"a restore waits for room: {error}")
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_EVERY)


def _brought(
    session: WorkerSession,
    client: WorkerClient,
    state: State,
    source: Resume,
    misfits: _Misfits,
) -> RestoreSource:
    """From the beginning, by the next daemon, when one dies meanwhile; for as long as it takes."""
    deadline, most = time.monotonic() + FETCH_WITHIN, 0
    while True:
        opened = client.open(source, FETCH_WITHIN)
        contents = Contents(opened)
        try:
            restored = RestoreSource(contents, source)
            needs = restored.needs(state, session.ranks.rank, misfits.of_all)
            _stream(client, restored, state, needs)
        except DaemonUnavailable:
            come = restored.read_to + contents.brought
            if come > most:
                deadline, most = time.monotonic() + FETCH_WITHIN, come
            elif time.monotonic() > deadline:
                raise
        except CheckpointsError:
            client.restored(opened.id)
            raise
        else:
            return restored


def _stream(
    client: WorkerClient, restored: RestoreSource, state: State, needs: Sequence[Range]
) -> None:
    """What this rank needs comes here, and what it has as it was saved is filled on the way."""
    windows, asked = restored.windows(), AHEAD
    ahead = _ranges(windows[:asked])
    client.fetch(restored.ident, needs, FETCH_WITHIN, ahead=ahead)
    restored.match_groups(state)
    for number, window in enumerate(windows, 1):
        ahead = _ranges(windows[asked : number + AHEAD])
        moved = client.fetch(
            restored.ident, window.ranges, FETCH_WITHIN, ahead=ahead, passed=window.start
        )
        asked = number + AHEAD
        restored.fill(window, moved)


def _ranges(windows: Iterable[Window]) -> list[Range]:
    return [wanted for window in windows for wanted in window.ranges]


def _find(
    session: WorkerSession,
    client: WorkerClient,
    *,
    step: int | None = None,
    before: Commit | None = None,
) -> Commit | None:
    """By rank 0, for all."""
    found: tuple[Commit | None, str] = None, ""
    if session.ranks.rank == 0:
        try:
            found = client.find(FIND_WITHIN, step=step, before=before), ""
        except CheckpointsError as error:
            found = None, str(error)
    commit, problem = session.ranks.gather(found)[0]
    if problem:
        raise SpotelasticError(f"no earlier checkpoint can be looked for: {problem}")
    return commit


def _from_store(commit: Commit) -> Resume:
    return Resume("store", commit.step, epoch=commit.epoch)
