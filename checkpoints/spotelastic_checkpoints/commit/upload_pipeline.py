"""Uploads a node's newest due save to the object store, one save at a time, until it is committed.

    wanted -> hashed -> shards -> manifests -> complete -> recorded -> LATEST

Training must never wait for the store. The pipeline therefore only reads slots, which it pins. A
newer save replaces one that has not begun, or that makes no progress.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from spotelastic_checkpoints import crash_points, messages
from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.commit import upload_cadence
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.save_upload import Files, Save, UploadProgress, nbytes_of
from spotelastic_checkpoints.errors import (
    CheckpointsError,
    Fenced,
    StorageUnavailable,
    SupersededByNewerEpoch,
)
from spotelastic_checkpoints.format import manifest, shards
from spotelastic_checkpoints.format.manifest import Manifest, Shard
from spotelastic_checkpoints.format.shards import Cut
from spotelastic_checkpoints.memory.arena import Slot, SlotHeader
from spotelastic_checkpoints.protocol_version import FORMAT
from spotelastic_checkpoints.types import Commit, Item, UploadStatus

T = TypeVar("T")

logger = logging.getLogger(__name__)

_RETRY = Backoff(0.2, 5.0, jitter=(0.5, 1.5))
"""Between attempts while the store does not answer. All nodes of a cluster lose it at once, so
that their pauses have jitter."""
_LOOK = Backoff(0.05, 1.0, factor=1.5)
"""Between looks for the other nodes' manifests."""


@dataclass(frozen=True)
class UploadPolicy:
    """How uploads are made."""

    away_after: float = 10.0
    """Seconds without an uploaded file after which the store counts as away: a failing save lets
    others overwrite its slots.
    """
    silent_for: float = 30.0
    """Seconds in which nothing goes up after which that is told."""
    file: int = shards.FILE
    """Bytes beyond which a file takes no further items."""


UPLOAD_POLICY = UploadPolicy()


class _Left(CheckpointsError):
    """The save is of no use any more, and was given up without a message."""


class _Overwritten(CheckpointsError):
    """The save's slot was overwritten with a later save before it was uploaded."""


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for everything to end, then return the results or raise the first error.

    A request that went on after its slot was given up would send the next save's bytes under the
    name of the old one.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _overwritten(header: SlotHeader) -> _Overwritten:
    return _Overwritten(f"the slot of rank {header.rank} was overwritten meanwhile")


def checksummed(slot: Slot, items: Sequence[Item]) -> tuple[Item, ...]:
    """Return the items with the checksums of their bytes in the slot."""
    data = slot.data
    return tuple(
        manifest.checksummed(item, data[item.offset : item.offset + item.length]) for item in items
    )


class Pipeline:
    """Uploads saves in the daemon's event loop."""

    def __init__(
        self,
        commits: Callable[[], Commits],
        emit: Callable[[messages.DaemonEvent], None],
        moved_on: Callable[[], None],
        executor: Executor,
        uploads: Executor,
        committed: Callable[[Commit], None],
        overwritten: Callable[[], None],
        policy: UploadPolicy = UPLOAD_POLICY,
    ) -> None:
        """Create an idle pipeline; `run` does the work.

        Blocking calls run in `executor`. Files are uploaded in `uploads`, whose number of threads
        is the number of files in flight. `committed` is called for each commit that this node
        makes, `moved_on` whenever a save stops needing its slots, and `overwritten` when a save has
        lost its slot and no newer one waits.
        """
        self._policy = policy
        self._commits = commits
        self._emit = emit
        self._moved_on = moved_on
        self._executor = executor
        self._uploads = uploads
        self._committed = committed
        self._lost_slot = overwritten
        self._changed = asyncio.Event()
        self._wanted: Save | None = None
        self._active: Save | None = None
        self._sent = False
        """Whether all parts of the active save, and their manifests, are in the store."""
        self._resting = False
        """Whether the store is away, so that no slot is read until the next attempt."""
        self._outrun: Save | None = None
        """A complete save that a newer epoch kept from being committed: see `adopt`."""
        self._progress = UploadProgress()
        self._files = Files()
        """Stored files of the active save."""
        self._outage = ""
        """The problem reported last; empty when uploads make progress."""
        self._away = False
        """Whether the outage of the store was reported."""
        self.commit_time = 0.0
        """Seconds that this node's last commit took, without the outage before it."""
        self._begun = 0.0
        """When the upload began (monotonic clock). Time in which nothing went up is left out."""
        self._sent_in = 0.0
        """Seconds that the last upload of this node's parts took."""
        self._last_rate = 0.0
        """Bytes per second of the last upload of this node's parts."""
        self.deadline = 0.0
        """Epoch seconds at which this node will be gone; 0 without an interruption notice."""
        self.newest: Commit | None = None
        """The newest commit that LATEST is known to name."""
        self.settled: Commit | None = None
        """The newest save of this node that needs no more work: it is committed, or of no use."""
        self.epoch = 0
        """Epoch of the current round, under which LATEST may be moved."""

    @property
    def pinned(self) -> set[Path]:
        """Slots that still have to be uploaded, and are overwritten only if no other is free.

        Slots of a save that was sent are not among them. A node that died or left the save out
        never sends its part, and with two slots no other save would be possible while this one
        waited for it.
        """
        active = None if self._sent else self._active
        return {path for save in (active, self._wanted) if save for path in save.paths}

    @property
    def in_use(self) -> set[Path]:
        """Pinned slots that may not be overwritten even if no other is free.

        While the store is away nothing is read, and with two slots no save would be possible. So
        the active save's slots are released, and the newest save takes the place of what is
        overwritten.
        """
        resting = self._active.paths if self._resting and self._active else ()
        return self.pinned - set(resting)

    @property
    def upload(self) -> UploadStatus | None:
        """Progress of the active save, or of the next one; None if there is nothing to upload."""
        save = self._active or self._wanted
        if save is None:
            return None
        progress = self._progress if self._active else UploadProgress()
        return UploadStatus(
            save.commit.epoch, save.commit.step, progress.done, save.nbytes, progress.rate
        )

    @property
    def upload_time(self) -> float:
        """Seconds that an upload of this node's parts takes.

        They are those of the last upload, or of the current one if it has taken longer.
        """
        under_way = self._active is not None and not self._sent
        return max(self._sent_in, time.monotonic() - self._begun if under_way else 0.0)

    @property
    def outage(self) -> str:
        """Why uploads make no progress at the moment; empty when they do."""
        return self._outage

    def want(self, save: Save) -> bool:
        """Upload this save next, instead of one that waits.

        Returns False when it is old or known.
        """
        known = [s.commit for s in (self._active, self._wanted) if s]
        if self.settled is not None:
            known.append(self.settled)
        is_new = not known or save.commit > max(known)
        if is_new:
            self._wanted = save
            if self._active is not None and not self._sent and self._goes_first(save, self._active):
                why = "the node is about to go, and only a later save can still be uploaded in time"
                self._leave_active(CheckpointsError(why))
            self._changed.set()
        return is_new

    def _goes_first(self, later: Save, active: Save) -> bool:
        if not self.deadline:
            return False
        rate = self._progress.rate or self._last_rate
        room = rate * (self.deadline - time.time())
        return upload_cadence.goes_first(later.nbytes, active.nbytes - self._progress.done, room)

    def adopt(self, epoch: int, keep: Callable[[Save], bool]) -> None:
        """Continue with a new round's epoch.

        Saves for which `keep` returns False are not part of the round's history, and are given up.
        A complete save that was fenced by the claim of this epoch is recorded now.
        """
        self.epoch = epoch
        self._forget(keep)
        outrun, self._outrun = self._outrun, None
        if outrun is not None and self._wanted is None and keep(outrun):
            self._wanted = outrun
            self._changed.set()

    def _forget(self, keep: Callable[[Save], bool]) -> None:
        if self._wanted is not None and not keep(self._wanted):
            self._wanted = None
        if self._active is not None and not keep(self._active):
            self._leave_active(_Left(f"step {self._active.commit.step} is another history's"))

    def give_way(self) -> bool:
        """Give up the save that would be committed last, because a later save needs its slot.

        Returns False when no save holds a slot.
        """
        if self._wanted is not None:
            self._wanted = None
        elif self._active is not None and not self._sent:
            self._leave_active(CheckpointsError("its slot was needed for a later save"))
        else:
            return False
        return True

    def _leave_active(self, why: CheckpointsError) -> None:
        """Stop working on the active save. Requests that are in flight end by themselves."""
        self._progress.error = why
        self._active = None
        self._changed.set()

    def learned(self, commit: Commit | None) -> None:
        """Note a commit that another node made."""
        if commit is not None and (self.newest is None or commit > self.newest):
            self.newest = commit

    def busy(self) -> bool:
        """Return whether a save is being uploaded or waits to be."""
        return self._active is not None or self._wanted is not None

    async def run(self) -> None:
        """Upload the saves that are wanted, until cancelled."""
        while True:
            while self._wanted is None:
                self._changed.clear()
                await self._changed.wait()
            save, self._wanted = self._wanted, None
            self._active, self._sent, self._files = save, False, Files()
            try:
                await self._finish(save)
            finally:
                self._files = Files()
                if self._active is save:
                    self._active = None
                self._moved_on()

    async def _finish(self, save: Save) -> None:
        """Work on the save until it is committed, given up, or replaced by a newer one."""
        backoff, spent, got_on = _RETRY, 0.0, time.monotonic()
        while self._active is save:
            before = len(self._files)
            self._begun = time.monotonic() - spent
            try:
                await self._shards(save)
                self._sent, self._sent_in = True, time.monotonic() - self._begun
                self._last_rate = save.nbytes / max(self._sent_in, 1e-3)
                self._moved_on()
                committed = await self._record(save)
            except StorageUnavailable as error:
                # Some of thousands of files failed, others went up: that is progress.
                if len(self._files) > before:
                    backoff, got_on = _RETRY, time.monotonic()
                    spent = got_on - self._begun
                else:
                    self._tell_away(str(error))
                    if self._wanted is not None:
                        return
                backoff = backoff.failed()
                away = time.monotonic() - got_on > self._policy.away_after
                await self._rest(backoff.pause(random.uniform), away=away)
                continue
            except SupersededByNewerEpoch:
                # A round claims its epoch when it is proposed, and this daemon learns of the epoch
                # when the round starts. All parts of this node are stored, so only LATEST is left
                # to be moved.
                self._outrun = save
                self._settle(save.commit)
                self._emit(messages.Superseded(max(self.epoch, save.commit.epoch)))
                return
            except _Left:
                return
            except Fenced as error:
                self._complain(str(error))
                self._settle(save.commit)
                return
            except CheckpointsError as error:
                overwritten = isinstance(error, _Overwritten)
                if not (overwritten and self._away):
                    self._complain(f"step {save.commit.step} was not committed: {error}")
                self._settle(save.commit)
                if overwritten and self._wanted is None:
                    self._lost_slot()
                return
            self._outage, self._away = "", False
            if committed:
                self.commit_time = time.monotonic() - self._begun
                self._settle(save.commit)
                self.learned(save.commit)
                self._emit(messages.Committed(save.commit.epoch, save.commit.step, time.time()))
                self._active = None
                self._committed(save.commit)
                self._moved_on()
            return

    async def _shards(self, save: Save) -> None:
        """Upload the shards and manifests of all ranks of this node."""
        crash_points.reached("upload-started")
        self._progress = UploadProgress(self._files.nbytes)
        watch = asyncio.create_task(self._watch(save, self._progress))
        try:
            await _all(self._rank(save, slot, header) for slot, header in save.slots)
        except CheckpointsError as error:
            raise self._progress.error or error from None
        finally:
            watch.cancel()

    async def _watch(self, save: Save, progress: UploadProgress) -> None:
        """Tell once that nothing goes up, although no request has failed yet."""
        before = -1
        while progress.done != before:
            before = progress.done
            await asyncio.sleep(self._policy.silent_for)
        sent = f"{before >> 20} of {save.nbytes >> 20} MiB"
        self._complain(
            f"step {save.commit.step}: the store has taken nothing for "
            f"{self._policy.silent_for:g} s ({sent} uploaded): a request hangs there or on the "
            "way, and is repeated when its time is over; training continues"
        )

    async def _rank(self, save: Save, slot: Slot, header: SlotHeader) -> None:
        """Upload one rank's missing files, then its manifest."""
        generation, progress = slot.generation, self._progress
        sent = self._files.of(header.rank, generation)
        files = await self._in_thread(self._missing, save.commit, slot, header)
        if files is None:
            progress.find(header.owned_bytes - nbytes_of(sent))
            return
        loop = asyncio.get_running_loop()

        async def put(number: int, file: Cut) -> None:
            name = manifest.shard_name(header.rank, number)
            sent[number] = await loop.run_in_executor(
                self._uploads, self._put, save.commit, name, slot, file, progress
            )

        await _all(put(number, file) for number, file in enumerate(files) if number not in sent)
        if slot.generation != generation or slot.header() != header:
            # A worker may still write by a grant of the daemon that this one has replaced.
            raise _overwritten(header)
        content = Manifest(
            version=FORMAT,
            epoch=save.commit.epoch,
            step=save.commit.step,
            incarnation=save.incarnation,
            layout=header.layout,
            rank=header.rank,
            world_size=header.world_size,
            chunks=header.chunks,
            shards=tuple(sent[number] for number in range(len(files))),
        )
        await self._in_thread(self._commits().put_manifest, content)

    def _missing(self, commit: Commit, slot: Slot, header: SlotHeader) -> list[Cut] | None:
        """Return the files that the slot is cut into; None where they are stored already."""
        if self._commits().has_manifest(commit, header.rank):
            return None
        if slot.header() != header:
            raise _overwritten(header)
        return shards.cut(slot.items(header)[: header.owned], header.owned_bytes, self._policy.file)

    def _put(
        self, commit: Commit, name: str, slot: Slot, file: Cut, progress: UploadProgress
    ) -> Shard:
        """Hash and upload one file."""
        if progress.error is not None:
            raise progress.error
        try:
            hashed = replace(file, items=checksummed(slot, file.items))
            crash_points.reached("shard-hashed")
            data = slot.data[file.start : file.end]
            self._commits().put_shard(commit, name, data, progress.add)
        except Exception as error:
            if isinstance(error, CheckpointsError):
                # The error is kept until all files have ended. Its traceback would keep the file's
                # memory alive.
                error.__cause__ = error.__context__ = error.__traceback__ = None
            progress.error = progress.error or error
            raise
        return Shard(name, len(data), hashed.placed())

    async def _record(self, save: Save) -> bool:
        """Wait for the other nodes' manifests and commit.

        Returns False when a newer save goes first.
        """
        look = _LOOK
        while self._active is save:
            epoch = max(self.epoch, save.commit.epoch)
            try:
                if await self._in_thread(self._commits().commit, save.commit, epoch):
                    return True
            except SupersededByNewerEpoch:
                if self.epoch <= epoch:
                    raise
                # The round that claimed the newer epoch has started on this node meanwhile.
                continue
            if self._wanted is not None:
                return False
            look = look.failed()
            await self._pause(look.bound)
        return False

    def _settle(self, commit: Commit) -> None:
        self.settled = max(filter(None, (self.settled, commit)))

    def _complain(self, message: str) -> None:
        """Report a problem, unless it was the last one reported."""
        if message != self._outage:
            logger.warning(message)
            self._emit(messages.SaveFailed(message))
        self._outage, self._away = message, False

    def _tell_away(self, message: str) -> None:
        """Report an outage of the store once, even if it affects several saves."""
        if not self._away:
            self._complain(message)
        self._outage, self._away = message, True

    async def _rest(self, seconds: float, *, away: bool) -> None:
        """Wait before the next attempt.

        If `away`, the active save's slots may be overwritten meanwhile.
        """
        if away:
            self._resting = True
            self._moved_on()
        await self._pause(seconds)
        self._resting = False

    async def _pause(self, seconds: float) -> None:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            pass

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)
