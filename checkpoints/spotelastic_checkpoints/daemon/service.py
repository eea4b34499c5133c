"""Answers the requests of a node's agent and workers in the checkpoint daemon.

All of it runs in one event loop, with one handler per type of request. A handler reads shared
memory and keeps the books at once. Work that talks to the object store or to peers, or that waits,
runs beside it.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import isawaitable
from typing import Any, TypeVar

from spotelastic_checkpoints import framing, log_records, messages
from spotelastic_checkpoints.commit import retention
from spotelastic_checkpoints.commit.collector import Collector
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.commit.upload_pipeline import Pipeline
from spotelastic_checkpoints.daemon import daemon_state
from spotelastic_checkpoints.daemon.connections import Client, Connections
from spotelastic_checkpoints.daemon.daemon_storage import DaemonStorage
from spotelastic_checkpoints.daemon.due_saves import DueSaves
from spotelastic_checkpoints.daemon.file_keeper import FileKeeper, ScriptFolder
from spotelastic_checkpoints.daemon.proving import FirstCommit
from spotelastic_checkpoints.daemon.slot_allocator import SlotAllocator
from spotelastic_checkpoints.daemon.slot_prefault import SlotPrefaulter
from spotelastic_checkpoints.errors import (
    CheckpointsError,
    DaemonUnavailable,
    StorageRefused,
)
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.files.keeping import KeptFolders
from spotelastic_checkpoints.memory import fence, slots
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.offers import Offers
from spotelastic_checkpoints.replicas.keeper import ReplicaKeeper
from spotelastic_checkpoints.restore import sources
from spotelastic_checkpoints.restore.shared_restores import Restores
from spotelastic_checkpoints.restore.sources import SourceContext
from spotelastic_checkpoints.storage.open import folder_of
from spotelastic_checkpoints.storage.outage_retry import OutageRetry
from spotelastic_checkpoints.threads import step_back
from spotelastic_checkpoints.types import (
    Commit,
    DaemonStatus,
    EpochClaim,
    RestoreSet,
    Resume,
    RoundInfo,
    SlotGrant,
    WorkerStep,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

POINTS_EVERY = 0.25
UPLOADS, MOST_UPLOADS = 4, 32
"""Files that are uploaded at a time: per worker, and at most on one node."""


class Service:
    """The state of a checkpoint daemon, and its handlers of requests."""

    def __init__(
        self,
        arena: Arena,
        *,
        storage: str,
        owner: str,
        node: str,
        credentials: PeerCredentials,
        most_slots: int,
        keep: Keep,
        folder: ScriptFolder | None = None,
    ) -> None:
        self.arena = arena
        self._furnishing = SlotPrefaulter(arena, most_slots, self._grant_waiting, self.tell_problem)
        self._hurried = 0.0
        """Epoch seconds at which this node will be gone; 0 if no such time is known."""
        self.clients = Connections()
        self._node = node
        self._credentials = credentials
        self.listen = ""
        self.offers = Offers(arena)
        """What the node that keeps this one's replica is offered."""
        self._replicas = ReplicaKeeper(
            arena, credentials, self._may_pull, lambda: self._furnishing.settled, self.warn
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor = _stepping_back(8, "store")
        self._storage = DaemonStorage(storage, owner, self._executor)
        self._remembered = daemon_state.recall(arena.folder)
        self._restores = Restores(arena.workers, self._source_context)
        self.pipeline = Pipeline(
            self._storage.commits,
            self.clients.emit,
            self._uploads_changed,
            self._executor,
            _stepping_back(min(UPLOADS * arena.workers, MOST_UPLOADS), "upload"),
            self._committed,
            lambda: self.saves.take_newest(),  # noqa: PLW0108
        )
        self.saves = DueSaves(arena, self.pipeline, lambda: self._remembered)
        self._grants = SlotAllocator(
            arena, self._furnishing, self.pipeline, self.offers, self._replicas.give_up_memory
        )
        self._collector = Collector(self._storage.commits, self.tell_problem, self._executor, keep)
        self.files = self._file_keeper(folder or ScriptFolder(arena.folder))
        self._first = FirstCommit(arena.folder, storage, self._found)
        self._handlers = self._table()
        sources.forget_copies(arena)
        self._adopt_round()

    def _file_keeper(self, folder: ScriptFolder) -> FileKeeper:
        def tell(message: str) -> None:
            logger.warning(message)
            self.clients.emit(messages.FilesTold(message))

        kept = KeptFolders(
            folder.path,
            folder.kept,
            self._node,
            lambda: FileStore(self._storage.commits().storage),
            lambda message: self._from_thread(tell, message),
            ours=folder.ours,
        )
        thread = _stepping_back(1, "files")
        return FileKeeper(folder, kept, lambda: bool(self.pipeline.pinned), thread, tell)

    # -- life -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Upload, delete old checkpoints and pass on events, until cancelled."""
        self._loop = asyncio.get_running_loop()
        self.saves.want()
        if self.round is not None:
            self._replicas.begin(self.round)
            self.files.begin(self.round)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._upload())
            group.create_task(self._collector.run())
            group.create_task(self._pass_on_points())
            group.create_task(self.files.run())

    async def _upload(self) -> None:
        """Abort unfinished uploads of an earlier daemon here, then run the upload pipeline.

        Later on they could not be told from the uploads of this daemon.
        """
        round_ = self.round
        if round_ is not None and round_.epoch:
            with suppress(CheckpointsError, OSError):  # the sweep of a later epoch finds them, too
                await self._in_thread(
                    lambda: retention.end_uploads(
                        self._storage.commits(), round_.epoch, round_.ranks
                    )
                )
        await self.pipeline.run()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._restores.forget()
        self._replicas.end()
        self._first.end()

    def disconnected(self, client: Client) -> None:
        """Forget a client.

        A worker that died silently may have sealed a slot before, which can be uploaded now.
        """
        self.clients.remove(client)
        if client.attached:
            self.saves.want()
            self._grant_waiting()

    def tell_problem(self, message: str) -> None:
        logger.warning(message)
        self.clients.emit(messages.SaveFailed(message))

    def warn(self, message: str) -> None:
        """Tell a problem from another thread."""
        self._from_thread(self.tell_problem, message)

    def _from_thread(self, tell: Callable[[str], None], message: str) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(tell, message)

    def _may_pull(self) -> bool:
        """Whether replicas are in nobody's way: nothing is restored, and the node stays."""
        return not (self._hurried or self._restores.under_way)

    def _committed(self, commit: Commit) -> None:
        logger.info(f"step {commit.step} is committed")
        self._first.committed(commit)
        self._emit_points(all_written=False)
        if not self._first.is_read:  # otherwise what is being read might be collected
            self._collector.committed(commit, self.pipeline.epoch)

    def _uploads_changed(self) -> None:
        """Use the slots again of a save that was committed or given up."""
        self.saves.settled()
        self._grant_waiting()

    # -- requests ---------------------------------------------------------------------------------

    def handle(self, client: Client, ident: int, request: messages.Request) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(client, ident, request))
        client.tasks.add(task)
        task.add_done_callback(client.tasks.discard)

    async def _answer(self, client: Client, ident: int, request: messages.Request) -> None:
        try:
            result = self._handlers[type(request)](client, ident, request)
            if isawaitable(result):
                result = await result
        except CheckpointsError as error:
            client.send(framing.frame(ident, f"{type(error).__name__}: {error}", None))
        except Exception as error:
            # Without an answer the client would wait until its deadline. The traceback goes to
            # the daemon's log.
            client.send(framing.frame(ident, f"{type(error).__name__}: {error!r}", None))
            raise
        else:
            if result is not _LATER and not isinstance(request, _UNANSWERED):
                client.send(framing.frame(ident, "", result))

    def _table(self) -> dict[type, Callable[[Client, int, Any], Any]]:
        """Return the handler of each request. A handler that waits returns a coroutine."""
        return {
            messages.Begin: lambda client, ident, r: self.begin(r.round),
            messages.ClaimEpoch: lambda client, ident, r: self._claim(r),
            messages.GetStatus: lambda client, ident, r: self._status(),
            messages.SetTarget: lambda client, ident, r: self._set_target(r),
            messages.End: lambda client, ident, r: self.end(),
            messages.Flush: lambda client, ident, r: self.saves.flush(r.timeout),
            messages.SetDeadline: lambda client, ident, r: self._hurry(r.deadline),
            messages.FlushFiles: lambda client, ident, r: self._flush_files(r.timeout),
            messages.PutBack: lambda client, ident, r: self.files.put_back(r.rank),
            messages.Subscribe: lambda client, ident, r: self.clients.subscribe(client),
            messages.Attach: lambda client, ident, r: self._attach(client, r),
            messages.OpenRestoreSet: lambda client, ident, r: self._open(client, r.resume),
            messages.Fetch: lambda client, ident, r: self._restores.fetch(r, client.local_rank),
            messages.FindCommit: lambda client, ident, r: self._restores.find(r.step, r.before),
            messages.Restored: lambda client, ident, r: self._restores.done(
                r.id, client.local_rank
            ),
            messages.Prepare: lambda client, ident, r: self._prepare(client, r.nbytes),
            messages.AwaitSlots: lambda client, ident, r: self._furnishing.wait(r.local_rank),
            messages.Reserve: lambda client, ident, r: self._reserve(client, ident, r.urgent),
            messages.Sealing: lambda client, ident, r: self._sealing(client, r),
            messages.Await: lambda client, ident, r: self._await(client, ident, r.target),
            messages.Complain: lambda client, ident, r: self.tell_problem(r.message),
            messages.Rehearse: lambda client, ident, r: self._rehearsed(r),
            messages.Urge: lambda client, ident, r: self.saves.want(),
            messages.Leave: lambda client, ident, r: self._leave(client, r),
        }

    # -- the round --------------------------------------------------------------------------------

    @property
    def round(self) -> RoundInfo | None:
        return self._remembered.round

    def begin(self, round_: RoundInfo) -> None:
        known = self.round is not None and self.round.incarnation == round_.incarnation
        self._remembered = self._remembered.begun(round_)
        log_records.entered(round_.number, round_.cause)
        if not known:
            logger.info(f"round {round_.number} begins on this node")
            self._restores.begin()
            self.saves.begin()
        # A page names its own round. The workers of this round may use it already, if the daemon
        # before this one could not write down the round.
        for page, rank in zip(self.arena.pages, round_.ranks, strict=False):
            if not page.is_of(round_.incarnation):
                page.reset(round_.incarnation, rank, round_.schedule, self._hurried)
        self._adopt_round()
        self.files.begin(round_)
        self.saves.want()
        self._grant_waiting()
        self._keep()
        if self._loop is not None:
            self._replicas.begin(round_)

    def _keep(self) -> None:
        """Write down the round for the next daemon; this comes last, as only that one needs it.

        A daemon that finds an earlier round there does nothing for this one until its agent tells
        it. What it may commit for the earlier round is limited by that round's epoch.
        """
        try:
            daemon_state.keep(self.arena.folder, self._remembered)
        except OSError as error:
            self.tell_problem(
                f"{self.arena.folder}: {error.strerror}: the round could not be written down; if "
                "this daemon is restarted, it uploads nothing of it until the agent names the round"
            )

    def _adopt_round(self) -> None:
        round_ = self.round
        if round_ is None:
            return
        self._collector.on = round_.slot == 0 and not self._hurried
        self.pipeline.adopt(
            round_.epoch,
            lambda save: slots.on_lineage(round_, save.incarnation, save.commit.step),
        )

    def end(self) -> None:
        """End the round's work on this node: its workers are dead."""
        for client in self.clients:
            client.rank, client.awaiting = -1, None
        self.arena.drop_torn()
        self._emit_points(all_written=True)
        self._restores.forget()
        self.saves.want()
        self.files.ended()

    def _set_target(self, request: messages.SetTarget) -> list[WorkerStep]:
        self._check_current(request.round)
        if request.schedule is not None:
            for page in self.arena.pages:
                page.set_schedule(request.schedule)
            fence.raise_everywhere()
        for page in self.arena.pages:
            page.set_target(request.proposal, request.target)
        fence.raise_everywhere()
        for client in self.clients:
            if client.awaiting is not None and client.awaiting[1] != request.target:
                client.send(framing.frame(client.awaiting[0], "", request.target))
                client.awaiting, client.waiting = None, False
        return self._workers()

    def _workers(self) -> list[WorkerStep]:
        waiting = {c.local_rank for c in self.clients.workers if c.awaiting or c.tasks}
        return [page.read(local, local in waiting) for local, page in enumerate(self.arena.pages)]

    def _check_current(self, incarnation: str) -> None:
        if self.round is None or self.round.incarnation != incarnation:
            raise DaemonUnavailable(f"round {incarnation} is not the current one on this node")

    async def _claim(self, request: messages.ClaimEpoch) -> EpochClaim:
        history = self._remembered.history(request.rounds)
        claim = await self._storage.claim(request, history)
        self.pipeline.learned(claim.commit)
        for remark in self._storage.remarks():
            self.tell_problem(remark)
        return claim

    def _status(self) -> DaemonStatus:
        upload = self.pipeline.upload
        return DaemonStatus(
            listen=self.listen,
            snapshots=(
                *slots.replicas(self.arena),
                *slots.snapshots(header for _, header in self.arena.sealed()),
            ),
            commit=self.pipeline.newest,
            workers=tuple(self._workers()),
            upload=upload,
            error=self.pipeline.outage or self._collector.problem,
            ready=self._furnishing.done,
            arena=sum(slot.size for slot in (*self.arena.slots(), *self.arena.replicas())),
            commit_time=self.pipeline.commit_time,
            collecting=self._collector.busy,
            replica_time=self._replicas.pull_time,
            restore_time=self._restores.restore_time,
            restored_from=self._restores.restored_from,
            ancestry=None if self.round is None else self.round.ancestry,
            outage=self.pipeline.outage,
        )

    def _hurry(self, deadline: float) -> None:
        self._hurried, self._collector.on, self.pipeline.deadline = deadline, False, deadline
        for page in self.arena.pages:
            page.set_deadline(deadline)
        self.offers.pause()
        self._replicas.end()
        self.files.hurry(deadline)
        self.saves.want(every_save=True)

    async def _flush_files(self, timeout: float) -> bool:
        left = self._hurried - time.time() if self._hurried else timeout
        return await self.files.flush(max(min(timeout, left), 1.0))

    # -- workers ----------------------------------------------------------------------------------

    def _attach(self, client: Client, request: messages.Attach) -> str:
        self._check_current(request.round)
        local = request.local_rank
        if not 0 <= local < self.arena.workers:
            raise CheckpointsError(
                f"local rank {local}: this daemon was started for {self.arena.workers} workers"
            )
        client.rank, client.local_rank, client.round = request.rank, local, request.round
        self.clients.emit(messages.Attached(request.rank))
        return str(self.arena.page_path(local))

    async def _open(self, client: Client, resume: Resume) -> RestoreSet:
        opened = await self._restores.open(resume, client.local_rank)
        if opened.items and not any(each.slots for each in self.clients):
            self._grants.make_room(resume, self.round)
        return opened

    def _source_context(self) -> SourceContext:
        return SourceContext(
            self.arena,
            self._storage.commits,
            self._node,
            self._credentials,
            self.warn,
            OutageRetry(self.warn),
        )

    def _prepare(self, client: Client, nbytes: int) -> None:
        check_room(self._storage.url, self.round, nbytes)
        client.slots = self._grants.prepare(client.local_rank, nbytes, self.round)

    def _reserve(self, client: Client, ident: int, urgent: bool) -> object:
        path = self._grants.next(client, self.round, urgent=urgent)
        if path is None:
            client.reserving = ident
            return _LATER
        client.reserving = 0
        return SlotGrant(str(path), self._storage.owner)

    def _grant_waiting(self) -> None:
        for client in self.clients:
            if client.reserving:
                self.handle(client, client.reserving, messages.Reserve())

    def _sealing(self, client: Client, request: messages.Sealing) -> None:
        client.sealed, client.waiting = request.step, request.waiting
        self._restores.forget()
        workers = [c for c in self.clients.workers if c.round == client.round]
        ranks = {c.rank for c in workers if c.sealed == request.step}
        round_ = self.round
        if round_ is not None and ranks >= set(round_.ranks):
            waiting = all(c.waiting for c in workers)
            self.clients.emit(messages.Sealed(request.step, tuple(sorted(ranks)), waiting))
            self.offers.sealed()
            self.files.saved()
            if self.saves.passes(request, round_, in_haste=self._hurried > 0):
                self.saves.want()

    def _await(self, client: Client, ident: int, target: int) -> object:
        now = self.arena.pages[client.local_rank].target
        if now != target:
            client.waiting = False
            return now
        client.awaiting = (ident, target)
        return _LATER

    def _rehearsed(self, told: messages.Rehearse) -> None:
        if told.kind == messages.HELD:
            self._collector.found_good(told.step)
        else:
            found = told.step, told.world_size, told.outcome, told.message, told.kind
            self._found(messages.Rehearsed(*found))

    def _found(self, report: messages.Rehearsed) -> None:
        logger.info(report.message)
        self.clients.emit(report)

    def _leave(self, client: Client, request: messages.Leave) -> None:
        self._emit_points(all_written=True)
        self.clients.emit(messages.WorkerLeft(client.rank, request.step, request.clean))
        self.saves.want()
        self.clients.detach(client)

    async def _pass_on_points(self) -> None:
        while True:
            await asyncio.sleep(POINTS_EVERY)
            self._emit_points(all_written=False)
            if self.saves.has_paused():
                self.saves.want()

    def _emit_points(self, *, all_written: bool) -> None:
        points = self.arena.pages[0].take_points(all_written=all_written)
        if points:
            self._collector.seen(points, self.pipeline.epoch)
            self.clients.emit(messages.Points(points))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)


def _stepping_back(threads: int, name: str) -> ThreadPoolExecutor:
    """Return an executor whose threads, and the processes they start, have a lower priority."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=step_back)


_LATER = object()
"""Returned by a handler whose request is answered later."""
_UNANSWERED = (messages.Sealing, messages.Urge, messages.Complain, messages.Rehearse)
"""Requests that nobody waits for the end of."""


SLACK = 1 << 20
"""Largest number of bytes of a slot that are no content. A smaller shortage is not certain."""


def check_room(url: str, round_: RoundInfo | None, nbytes: int) -> None:
    """Raise `StorageRefused` where a run that begins could not save `nbytes` once.

    A run that resumes is not stopped: its disk may be full only for a while.
    """
    folder = folder_of(url)
    if folder is None or round_ is None or round_.resume.kind != "fresh":
        return
    with suppress(OSError):  # What is wrong with the folder, the claim has reported.
        free = shutil.disk_usage(folder).free
        if free + SLACK < nbytes:
            raise StorageRefused(
                f"storage {folder}: {free >> 20} MiB are free, and one checkpoint takes "
                f"{nbytes >> 20} MiB: make room, or name another storage"
            )
