"""A worker's side of saving: its page, its slots, and its connection to the node's daemon.

Stdlib and msgspec only. Publishing a step is wait-free; a daemon that is gone costs saves, never
training: the next save looks for a new one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from spotelastic_checkpoints import crash_points, messages
from spotelastic_checkpoints.crash_points import Stage
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.memory import fence
from spotelastic_checkpoints.memory.arena import Slot, SlotHeader
from spotelastic_checkpoints.memory.prefault import populate
from spotelastic_checkpoints.memory.worker_page import WorkerPage
from spotelastic_checkpoints.protocol.connection import Connection
from spotelastic_checkpoints.types import (
    Commit,
    DaemonStatus,
    Moved,
    Range,
    RestoreSet,
    Resume,
    SlotGrant,
)

T = TypeVar("T")

ANSWER_WITHIN = 5.0
"""Seconds for what the daemon answers at once."""
FURNISHED_WITHIN = 600.0
RECONNECT_EVERY = 0.2
GIVES_WAY_AFTER = 1.0
"""Seconds that an urgent save waits for an upload to end, before it is given up."""
TELL_EVERY = 5.0
REPLACED_WITHIN = 20.0
"""Seconds that whoever cannot do without a daemon waits for the next one."""


def ignored(path: str, memory: memoryview) -> None:
    pass


def quietly(status: DaemonStatus | None) -> None:
    pass


class OpenSlot:
    """A slot that is being written; the save counts once `seal` has returned."""

    def __init__(self, slot: Slot, owner: str, *, known: bool) -> None:
        slot.open()
        crash_points.reached(Stage.SLOT_OPENED)
        self._slot = slot
        self.owner = owner
        self.memory = slot.memory
        self.data = slot.data
        self.known = known
        """This process has written a save of the same layout into it: index and prefixes stand."""

    @property
    def path(self) -> str:
        return str(self._slot.path)

    def write_index(self, data_bytes: int, index: bytes) -> None:
        self._slot.write_index(data_bytes, index)

    def seal(self, header: SlotHeader, lengths: Sequence[int]) -> None:
        crash_points.reached(Stage.SLOT_COPIED)
        self._slot.seal(header, lengths)
        crash_points.reached(Stage.SLOT_SEALED)


class WorkerClient:
    """One per worker process, used from one thread at a time. `round` is its incarnation."""

    def __init__(self, socket: str, *, round: str, rank: int, local_rank: int) -> None:
        fence.accept()
        self._socket = socket
        self._attach = messages.Attach(round, rank, local_rank)
        self._prepare: messages.Prepare | None = None
        self._sealing: messages.Sealing | None = None
        """The last one: a daemon that has taken over is told of it again."""
        self._reservation = 0
        """Id of the request for the next slot; 0: none is asked for."""
        self._told = ""
        """Why nothing is saved."""
        self._slots: dict[str, Slot] = {}
        self._mapping = threading.Lock()
        self._written: set[str] = set()
        self.ready = threading.Event()
        """All slots are in memory and mapped: a save costs one warm copy from now on."""
        self._connection, page = self._insisted()
        self.page = WorkerPage(Path(page))

    # -- restoring --------------------------------------------------------------------------------

    def open(self, resume: Resume, timeout: float) -> RestoreSet:
        """What the named source holds; raises `RestoreFailed` where it is not whole."""
        found = self._insist(messages.OpenRestoreSet(resume), RestoreSet, timeout)
        crash_points.reached(Stage.RESTORE_OPENED)
        return found

    def fetch(
        self,
        ident: int,
        ranges: Sequence[Range],
        timeout: float,
        *,
        ahead: Sequence[Range] = (),
        passed: int | None = None,
    ) -> tuple[Moved, ...]:
        """Returns once these bytes of the restore set's file are there, and verified; what is
        `ahead` begins to come.

        They stay there, unless `passed` says from which offset on this worker needs anything at
        all: then they may be elsewhere in the file, as is returned, and go when it has passed
        them. After `DaemonUnavailable` it is to be opened anew: the next daemon knows nothing of
        it.
        """
        moved: tuple[Moved, ...] = ()
        if ranges or ahead:
            request = messages.Fetch(ident, tuple(ranges), tuple(ahead), passed)
            moved = self._connection.call(request, messages.Fetched, timeout).moved
        crash_points.reached(Stage.RESTORE_FETCHED)
        return moved

    def find(
        self, timeout: float, *, step: int | None = None, before: Commit | None = None
    ) -> Commit | None:
        """The newest commit in the store: at `step` alone, and older than `before`, where told."""
        request = messages.FindCommit(step, before)
        return self._insist(request, Commit | None, timeout)  # type: ignore[arg-type]

    def restored(self, ident: int) -> None:
        """This worker has read the restore set with this id. A new daemon knows of none."""
        try:
            self._connection.call(messages.Restored(ident), type(None), ANSWER_WITHIN)
        except DaemonUnavailable:
            self._reconnect(REPLACED_WITHIN)
        crash_points.reached(Stage.RESTORE_READ)

    # -- saving -----------------------------------------------------------------------------------

    def prepare(self, nbytes: int, mapped: Callable[[str, memoryview], None] = ignored) -> None:
        """Slots take `nbytes` from now on; raises `ArenaFull` when they do not fit.

        `mapped` is told, from another thread, the path and memory of each slot once it is mapped;
        the slot may hold a save, and is not to be written.
        """
        self._prepare = messages.Prepare(nbytes)
        self._written.clear()
        self.ready.clear()
        try:
            self._ask_for_slots(self._prepare)
        except DaemonUnavailable:
            self._reconnect(REPLACED_WITHIN)
        mapping = threading.Thread(
            target=self._map_ahead, args=(mapped,), name="slots", daemon=True
        )
        mapping.start()

    def open_slot(self, patience: float, *, urgent: bool = False) -> OpenSlot | None:
        """The slot that the daemon has set aside; None when there is none within `patience`, or
        when it has no memory for any: it is asked again for the next save.

        For an `urgent` save an older one that is being uploaded is given up, if it must be.
        """
        try:
            grant = self._granted(patience, urgent=urgent)
        except TimeoutError:
            return None
        except DaemonUnavailable:
            if not self._reconnect(patience):
                return None
            return self.open_slot(patience, urgent=urgent)
        except CheckpointsError as error:
            self._tell_once(f"nothing is saved for the moment: {error}")
            self._reservation = 0
            return None
        self._told = ""
        slot = self._mapped(grant.path)
        known = grant.path in self._written
        self._written.add(grant.path)
        return OpenSlot(slot, grant.owner, known=known)

    def sealed(self, slot: OpenSlot, step: int, *, waiting: bool, due: bool) -> None:
        """Tell the daemon, and ask for the next slot. Never waits for it."""
        self._sealing = messages.Sealing(step, slot.path, waiting, due)
        try:
            self._connection.send(self._sealing)
            self._reservation = self._connection.send(messages.Reserve())
        except DaemonUnavailable:
            self._reconnect(0.0)
        crash_points.reached(Stage.SLOT_REPORTED)

    def wait(self, step: int) -> int:
        """Block at the target `step`, which is sealed, until the target is another."""
        while self.page.target == step:
            try:
                ident = self._connection.send(messages.Await(step))
                self._connection.receive(ident, int, None)
            except DaemonUnavailable:
                self._reconnect(RECONNECT_EVERY)
        if self._sealing is not None:
            self._sealing = replace(self._sealing, waiting=False)
        return self.page.target

    def flush(self, timeout: float) -> bool:
        """Wait until everything that is due is committed; False when time ran out."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                ident = self._connection.send(messages.Flush(left))
                return self._connection.receive(ident, bool, left + 1.0)
            except TimeoutError:
                return False
            except DaemonUnavailable:
                self._reconnect(min(left, ANSWER_WITHIN))
        return False

    def finish(
        self, patience: float, waits: Callable[[DaemonStatus | None], None] = quietly
    ) -> bool:
        """The same for as long as it takes; False when nothing went up for `patience` seconds, or
        when it will never be committed. `waits` hears every few seconds how far it is."""
        sent, deadline = _sent(self.status()), time.monotonic() + patience
        while True:
            within = min(patience, TELL_EVERY)
            begun = time.monotonic()
            if self.flush(within):
                return True
            status = self.status()
            before, sent = sent, max(sent, _sent(status))
            if sent > before:
                deadline = time.monotonic() + patience
            elif time.monotonic() >= deadline or time.monotonic() - begun < within / 2:
                return False  # the time is over, or the daemon has said so before it was
            waits(status)

    def status(self) -> DaemonStatus | None:
        """Of the daemon; None where it does not answer: the next flush looks for another."""
        try:
            return self._connection.call(messages.GetStatus(), DaemonStatus, ANSWER_WITHIN)
        except DaemonUnavailable:
            return None

    # -- the rest ---------------------------------------------------------------------------------

    def urge(self) -> None:
        """What was saved last, to be committed, is uploaded even where not every save is."""
        self._tell(messages.Urge())

    def complain(self, message: str) -> None:
        self._tell(messages.Complain(message))

    def leave(self, *, clean: bool) -> None:
        self.page.leave()
        try:
            request = messages.Leave(self.page.read(0).step, clean)
            self._connection.call(request, type(None), ANSWER_WITHIN)
        except DaemonUnavailable:
            pass
        self._connection.close()

    def _mapped(self, path: str) -> Slot:
        """The slot as this process has mapped it: once, whichever thread needs it first."""
        with self._mapping:
            slot = self._slots.get(path)
            if slot is None or not slot.is_of(slot.path.stat()):
                slot = self._slots[path] = Slot(Path(path))
                self._written.discard(path)
            return slot

    def _map_ahead(self, mapped: Callable[[str, memoryview], None]) -> None:
        """Beside training: the first save into each slot is to cost no more than the others."""
        try:
            connection = Connection.unix(self._socket, ANSWER_WITHIN)
            request = messages.AwaitSlots(self._attach.local_rank)
            for path in connection.call(request, tuple[str, ...], FURNISHED_WITHIN):
                slot = self._mapped(path)
                populate(slot.memory)
                mapped(path, slot.memory)
            connection.close()
            self.ready.set()
        except (CheckpointsError, OSError):
            # Slots are mapped as they are granted; the daemon has said why it has none.
            pass

    def _tell(self, request: messages.Request) -> None:
        try:
            self._connection.send(request)
        except DaemonUnavailable:
            pass

    def _insist(self, request: messages.Request, kind: type[T], timeout: float) -> T:
        """Asks the next daemon when this one dies."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._connection.call(request, kind, deadline - time.monotonic())
            except DaemonUnavailable:
                left = deadline - time.monotonic()
                if left <= 0 or not self._reconnect(min(left, REPLACED_WITHIN)):
                    raise

    def _ask_for_slots(self, prepare: messages.Prepare) -> None:
        """Raises `ArenaFull` where they do not fit."""
        self._reservation = 0
        self._connection.call(prepare, type(None), ANSWER_WITHIN)
        self._reservation = self._connection.send(messages.Reserve())

    def _tell_once(self, problem: str) -> None:
        if not self._told:
            self.complain(problem)
        self._told = problem

    def _granted(self, patience: float, *, urgent: bool) -> SlotGrant:
        if not self._reservation and self._prepare is not None:
            self._ask_for_slots(self._prepare)
        if urgent:
            try:
                return self._granted(GIVES_WAY_AFTER, urgent=False)
            except TimeoutError:
                self._reservation = self._connection.send(messages.Reserve(urgent=True))
        grant = self._connection.receive(self._reservation, SlotGrant, patience)
        self._reservation = 0
        return grant

    def _insisted(self) -> tuple[Connection, str]:
        """A worker may be started while a daemon that has died is being replaced."""
        deadline = time.monotonic() + REPLACED_WITHIN
        while True:
            try:
                return self._connected()
            except DaemonUnavailable:
                if time.monotonic() + RECONNECT_EVERY > deadline:
                    raise
                time.sleep(RECONNECT_EVERY)

    def _connected(self) -> tuple[Connection, str]:
        connection = Connection.unix(self._socket, ANSWER_WITHIN)
        return connection, connection.call(self._attach, str, ANSWER_WITHIN)

    def _reconnect(self, within: float) -> bool:
        """A new daemon may have taken the old one's place, with the same arena."""
        deadline = time.monotonic() + within
        while True:
            try:
                self._connection, _ = self._connected()
                if self._sealing is not None:
                    self._connection.send(self._sealing)
                if self._prepare is not None:
                    with suppress(ArenaFull):  # the next save asks again
                        self._ask_for_slots(self._prepare)
                return True
            except CheckpointsError:  # or it has not been told of the round yet
                if time.monotonic() + RECONNECT_EVERY > deadline:
                    return False
                time.sleep(RECONNECT_EVERY)


def _sent(status: DaemonStatus | None) -> tuple[int, int, int]:
    """How far the upload is: epoch, step, bytes. Zeros where none is under way."""
    upload = status.upload if status is not None else None
    return (upload.epoch, upload.step, upload.done) if upload is not None else (0, 0, 0)
