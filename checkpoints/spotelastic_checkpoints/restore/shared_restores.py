"""Restores of a node: local ranks that ask for the same source share what is fetched of it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from spotelastic_checkpoints.errors import ArenaFull, RestoreFailed
from spotelastic_checkpoints.messages import Fetch, Fetched
from spotelastic_checkpoints.restore import sources
from spotelastic_checkpoints.restore.fetcher import END, Fetcher
from spotelastic_checkpoints.restore.sources import OpenSource, SourceContext
from spotelastic_checkpoints.types import Commit, RestoreSet, Resume


@dataclass
class _Restore:
    """Under way or done."""

    task: "asyncio.Task[OpenSource]"
    read_by: set[int] = field(default_factory=set)
    """Local ranks that are done with it."""

    @property
    def opened(self) -> OpenSource | None:
        task = self.task
        good = task.done() and not task.cancelled() and task.exception() is None
        return task.result() if good else None


class Restores:
    """Lives in the daemon's event loop."""

    def __init__(self, ranks: int, surroundings: Callable[[], SourceContext]) -> None:
        self._ranks = ranks
        self._surroundings = surroundings
        self._around: SourceContext | None = None
        """Of this round's restores: what they wait for ends with it."""
        self._restores: dict[bytes, _Restore] = {}
        self._shortages: dict[int, str] = {}
        """Of restores that have been begun anew: the next who asks for one hears the same."""
        self._last = 0

    async def open(self, resume: Resume, local_rank: int) -> RestoreSet:
        """Once per source, whoever asks; anew where room was missing for what was to be fetched.
        Raises what opening it raised."""
        key = msgspec.msgpack.encode(resume)
        known = self._restores.get(key)
        if known is not None and known.opened is not None and known.opened.fetcher.shortage:
            self._shortages[known.opened.restore_set.id] = known.opened.fetcher.shortage
            known.opened.fetcher.remove()
            del self._restores[key]
        if key not in self._restores:
            self._last += 1
            work = asyncio.to_thread(sources.open_source, self._last, resume, self._of_round())
            self._restores[key] = _Restore(asyncio.get_running_loop().create_task(work))
        shared = self._restores[key]
        try:
            opened = await asyncio.shield(shared.task)
        except Exception:
            # Whoever asks again gets another try, which may be under way by now.
            if self._restores.get(key) is shared:
                del self._restores[key]
            raise
        shared.read_by.discard(local_rank)
        opened.fetcher.enter(local_rank)
        return opened.restore_set

    async def find(self, step: int | None, before: Commit | None) -> Commit | None:
        """The newest commit: at `step` alone, and older than `before`, where told."""
        return await asyncio.to_thread(sources.find_commit, step, before, self._of_round())

    async def fetch(self, request: Fetch, local_rank: int) -> Fetched:
        """Returns when these ranges of the file that all share are there."""
        for each in self._restores.values():
            if each.opened is not None and each.opened.restore_set.id == request.id:
                return await asyncio.to_thread(_fetch, each.opened.fetcher, request, local_rank)
        if request.id in self._shortages:
            raise ArenaFull(self._shortages[request.id])
        raise RestoreFailed("what was to be restored has been put away: another round has begun")

    def done(self, ident: int, local_rank: int) -> None:
        """When the last local rank has read it, the copies are no longer needed."""
        for key, each in list(self._restores.items()):
            if each.opened is not None and each.opened.restore_set.id == ident:
                each.read_by.add(local_rank)
                each.opened.fetcher.passed(local_rank, END)
                if len(each.read_by) == self._ranks:
                    each.opened.fetcher.remove()
                    del self._restores[key]

    def forget(self) -> None:
        """The copies go at once, or when what is under way is done; nobody waits for it."""
        if self._around is not None:
            self._around.patience.end()
            self._around = None
        for each in self._restores.values():
            if each.task.done():
                _remove_copies(each.task)
            else:
                each.task.add_done_callback(_remove_copies)
        self._restores.clear()
        self._shortages.clear()

    def _of_round(self) -> SourceContext:
        if self._around is None:
            self._around = self._surroundings()
        return self._around


def _fetch(fetcher: Fetcher, request: Fetch, local_rank: int) -> Fetched:
    if request.passed is not None:
        fetcher.passed(local_rank, request.passed)
    keep = request.passed is None
    return Fetched(tuple(fetcher.fetch(request.ranges, ahead=request.ahead, keep=keep)))


def _remove_copies(task: "asyncio.Task[OpenSource]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().fetcher.remove()
