"""Lets the local ranks of a node that restore from the same source share what is fetched of it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from spotelastic_checkpoints.errors import ArenaFull, RestoreFailed
from spotelastic_checkpoints.messages import Fetch, Fetched
from spotelastic_checkpoints.restore import sources
from spotelastic_checkpoints.restore.fetcher import END, Fetcher
from spotelastic_checkpoints.restore.sources import OpenSource, SourceContext
from spotelastic_checkpoints.types import REHEARSAL, Commit, RestoreSet, Resume

REHEARSED = "rehearsal"
"""Source of a restore that is no part of how the round began."""


@dataclass
class _Restore:
    """A source that is being opened or is open."""

    task: "asyncio.Task[OpenSource]"
    source: str
    """Where it comes from, as `Restores.restored_from` says it."""
    began: float
    read_by: set[int] = field(default_factory=set)
    """Local ranks that have read all they need."""

    @property
    def opened(self) -> OpenSource | None:
        task = self.task
        good = task.done() and not task.cancelled() and task.exception() is None
        return task.result() if good else None


class Restores:
    """The restores of one daemon, in its event loop."""

    def __init__(self, ranks: int, make_context: Callable[[], SourceContext]) -> None:
        """`ranks` is their number; `make_context` returns what sources are opened with."""
        self._ranks = ranks
        self._make_context = make_context
        self._context: SourceContext | None = None
        """Context of this round's restores. Their waits end with the round."""
        self._restores: dict[bytes, _Restore] = {}
        self._shortages: dict[int, str] = {}
        """Missing memory of restores that were begun again, by id: a rank that asks for an old one
        is told.
        """
        self._last = 0
        self.restore_time = 0.0
        """Seconds from the first rank's request until all ranks had read everything; 0: not yet in
        this round.
        """
        self.restored_from = ""
        """memory, replica (of nodes that kept another one's shards, too) or store."""

    def begin(self) -> None:
        """Begin another round: nothing is restored in it so far."""
        self.forget()
        self.restore_time, self.restored_from = 0.0, ""

    @property
    def under_way(self) -> bool:
        """Whether a local rank may still read what was opened."""
        return bool(self._restores)

    async def open(self, resume: Resume, local_rank: int) -> RestoreSet:
        """Open the source, once for all local ranks, and return what it holds.

        It is opened again where memory was missing for what was to be fetched. Raises the error of
        opening it.
        """
        key = msgspec.msgpack.encode(resume)
        known = self._restores.get(key)
        if known is not None and known.opened is not None and known.opened.fetcher.shortage:
            self._shortages[known.opened.restore_set.id] = known.opened.fetcher.shortage
            known.opened.fetcher.remove()
            del self._restores[key]
        if key not in self._restores:
            self._last += 1
            work = asyncio.to_thread(sources.open_source, self._last, resume, self._of_round())
            task = asyncio.get_running_loop().create_task(work)
            self._restores[key] = _Restore(task, _source(resume), time.monotonic())
        shared = self._restores[key]
        try:
            opened = await asyncio.shield(shared.task)
        except Exception:
            # The next rank that asks gets another attempt, which may be under way already.
            if self._restores.get(key) is shared:
                del self._restores[key]
            raise
        shared.read_by.discard(local_rank)
        opened.fetcher.enter(local_rank)
        return opened.restore_set

    async def find(self, step: int | None, before: Commit | None) -> Commit | None:
        """Return the newest commit, or None.

        `step` restricts the search to that step, `before` to commits older than that one.
        """
        return await asyncio.to_thread(sources.find_commit, step, before, self._of_round())

    async def fetch(self, request: Fetch, local_rank: int) -> Fetched:
        """Wait until these ranges are available in the file that all ranks share."""
        for each in self._restores.values():
            if each.opened is not None and each.opened.restore_set.id == request.id:
                return await asyncio.to_thread(_fetch, each.opened.fetcher, request, local_rank)
        if request.id in self._shortages:
            raise ArenaFull(self._shortages[request.id])
        raise RestoreFailed("the restore was ended, because another round has begun")

    def done(self, ident: int, local_rank: int) -> None:
        """Note that a local rank has read everything. The last one's report deletes the copies."""
        for key, each in list(self._restores.items()):
            if each.opened is not None and each.opened.restore_set.id == ident:
                each.read_by.add(local_rank)
                each.opened.fetcher.passed(local_rank, END)
                if len(each.read_by) == self._ranks:
                    if each.source != REHEARSED:
                        self.restore_time = time.monotonic() - each.began
                        self.restored_from = each.source
                    each.opened.fetcher.remove()
                    del self._restores[key]

    def forget(self) -> None:
        """Delete all copies, now or when the work under way is done, without waiting."""
        if self._context is not None:
            self._context.retry.end()
            self._context = None
        for each in self._restores.values():
            if each.task.done():
                _remove_copies(each.task)
            else:
                each.task.add_done_callback(_remove_copies)
        self._restores.clear()
        self._shortages.clear()

    def _of_round(self) -> SourceContext:
        if self._context is None:
            self._context = self._make_context()
        return self._context


def _source(resume: Resume) -> str:
    if resume.incarnation.endswith(REHEARSAL):
        return REHEARSED
    return "replica" if any(holder.replica for holder in resume.holders) else resume.kind


def _fetch(fetcher: Fetcher, request: Fetch, local_rank: int) -> Fetched:
    if request.passed is not None:
        fetcher.passed(local_rank, request.passed)
    keep = request.passed is None
    return Fetched(tuple(fetcher.fetch(request.ranges, ahead=request.ahead, keep=keep)))


def _remove_copies(task: "asyncio.Task[OpenSource]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().fetcher.remove()
