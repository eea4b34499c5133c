"""Gives a worker its page, its slots and a connection to the checkpoint daemon of its node.

To publish a step takes no lock and no call. A daemon that is gone costs saves, never training: the
next save looks for a new daemon. Needs only msgspec.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from spotelastic_checkpoints import crash_points, messages
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.memory import fence
from spotelastic_checkpoints.memory.arena import Slot, SlotHeader
from spotelastic_checkpoints.memory.prefault import populate
from spotelastic_checkpoints.memory.worker_page import WorkerPage
from spotelastic_checkpoints.protocol.connection import Connection
from spotelastic_checkpoints.types import (
    Commit,
    DaemonStatus,
    Item,
    Moved,
    Range,
    RestoreSet,
    Resume,
    SlotGrant,
)

T = TypeVar("T")

ANSWER_WITHIN = 5.0
"""Seconds for requests that the daemon answers at once."""
FURNISHED_WITHIN = 600.0
"""Seconds within which all slots should be in memory."""
RECONNECT_EVERY = 0.2
"""Seconds between attempts to reach a daemon."""
GIVES_WAY_AFTER = 1.0
"""Seconds that an urgent save waits for an upload to end, before the upload is given up."""
TELL_EVERY = 5.0
"""Seconds between reports of how far a last upload is."""
REPLACED_WITHIN = 20.0
"""Seconds to wait for the next daemon, where the worker cannot go on without one."""


def ignored(path: str, memory: memoryview) -> None:
    """Do nothing with a mapped slot."""


def quietly(status: DaemonStatus | None) -> None:
    """Do nothing with a status."""


class OpenSlot:
    """A slot that is being written. The save counts once `seal` has returned."""

    def __init__(self, slot: Slot, owner: str, *, known: bool) -> None:
        slot.open()
        crash_points.reached("slot-opened")
        self._slot = slot
        self.owner = owner
        self.memory = slot.memory
        self.data = slot.data
        self.known = known
        """Whether this process has saved the same layout into the slot before, so that index and
        prefixes are there already.
        """

    @property
    def path(self) -> str:
        """Path of the slot's file."""
        return str(self._slot.path)

    def saved_items(self, incarnation: str, step: int) -> tuple[Item, ...]:
        """Return what was saved here of a step; nothing if the slot holds another save by now."""
        header = self._slot.header()
        if header is None or (header.incarnation, header.step) != (incarnation, step):
            return ()
        return self._slot.items(header)

    def write_index(self, data_bytes: int, index: bytes) -> None:
        """Write the index behind the items."""
        self._slot.write_index(data_bytes, index)

    def seal(self, header: SlotHeader, lengths: Sequence[int]) -> None:
        """Declare the slot complete. `lengths` are those of the pickled values."""
        crash_points.reached("slot-copied")
        self._slot.seal(header, lengths)
        crash_points.reached("slot-sealed")


class WorkerClient:
    """A worker's client of the daemon, used from one thread at a time."""

    def __init__(self, socket: str, *, round: str, rank: int, local_rank: int) -> None:
        """Attach to the daemon at `socket` as a worker of the round with this incarnation.

        Raises `DaemonUnavailable` where none answers within `REPLACED_WITHIN`.
        """
        fence.accept()
        self._socket = socket
        self._attach = messages.Attach(round, rank, local_rank)
        self._prepare: messages.Prepare | None = None
        self._sealing: messages.Sealing | None = None
        """The last report of a sealed slot, which is repeated to a new daemon."""
        self._reservation = 0
        """Id of the request for the next slot; 0 while none was sent."""
        self._told = ""
        """The reported reason why saves are left out; empty while they are not."""
        self._slots: dict[str, Slot] = {}
        self._mapping = threading.Lock()
        self._written: set[str] = set()
        self.ready = threading.Event()
        """Set once all slots are in memory and mapped, so that a save costs one copy into warm
        memory.
        """
        self._connection, page = self._insisted()
        self.page = WorkerPage(Path(page))

    # -- restoring --------------------------------------------------------------------------------

    def open(self, resume: Resume, timeout: float) -> RestoreSet:
        """Return what the source holds. Raises `RestoreFailed` where it is not complete."""
        found = self._insist(messages.OpenRestoreSet(resume), RestoreSet, timeout)
        crash_points.reached("restore-opened")
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
        """Wait until these ranges of the restore set's file are available and verified.

        Ranges `ahead` begin to be fetched. Without `passed` the ranges stay in their places. With
        it, this worker needs nothing before that offset any more. The ranges may then lie elsewhere
        in the file, as the result says, and are freed when the worker has passed them. After
        `DaemonUnavailable` the source has to be opened again: the next daemon does not know it.
        """
        moved: tuple[Moved, ...] = ()
        if ranges or ahead:
            request = messages.Fetch(ident, tuple(ranges), tuple(ahead), passed)
            moved = self._connection.call(request, messages.Fetched, timeout).moved
        crash_points.reached("restore-fetched")
        return moved

    def find(
        self, timeout: float, *, step: int | None = None, before: Commit | None = None
    ) -> Commit | None:
        """Return the newest commit in the storage, or None.

        `step` restricts the search to that step, `before` to commits older than that one.
        """
        request = messages.FindCommit(step, before)
        return self._insist(request, Commit | None, timeout)  # type: ignore[arg-type]

    def restored(self, ident: int) -> None:
        """Tell the daemon that this worker has read the restore set with this id."""
        try:
            self._connection.call(messages.Restored(ident), type(None), ANSWER_WITHIN)
        except DaemonUnavailable:
            self._reconnect(REPLACED_WITHIN)
        crash_points.reached("restore-read")

    # -- saving -----------------------------------------------------------------------------------

    def prepare(self, nbytes: int, mapped: Callable[[str, memoryview], None] = ignored) -> None:
        """Ask for slots of `nbytes` each. Raises `ArenaFull` when they do not fit.

        `mapped` is called from another thread with the path and memory of each slot, once it is
        mapped. The slot may hold a save, and must not be written there.
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
        """Return the slot that the daemon has set aside, or None.

        There is none if no slot is free within `patience` seconds, or the daemon has no memory for
        any. It is asked again for the next save. For an `urgent` save, an older one that is being
        uploaded is given up if necessary.
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
        return OpenSlot(slot, grant.owner, known=grant.path in self._written)

    def sealed(self, slot: OpenSlot, step: int, *, waiting: bool, due: bool) -> None:
        """Tell the daemon that a slot was sealed, and ask for the next one, without waiting."""
        self._written.add(slot.path)
        self._sealing = messages.Sealing(step, slot.path, waiting, due)
        try:
            self._connection.send(self._sealing)
            self._reservation = self._connection.send(messages.Reserve())
        except DaemonUnavailable:
            self._reconnect(0.0)
        crash_points.reached("slot-reported")

    def reserve(self) -> None:
        """Ask for the next slot, without a word of what the last one was used for."""
        try:
            self._reservation = self._connection.send(messages.Reserve())
        except DaemonUnavailable:
            self._reconnect(0.0)

    def found(self, step: int, world_size: int, outcome: str, message: str, kind: str) -> None:
        """Tell people what was found of a step, as by a rehearsal."""
        self._tell(messages.Rehearse(step, world_size, outcome, message, kind))

    def wait(self, step: int) -> int:
        """Wait at the target `step`, which is sealed, and return the next target."""
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
        """Wait until everything that is due is committed.

        Returns False if `timeout` (s) was not enough.
        """
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
        """Wait as long as it takes until everything that is due is committed.

        Returns False when nothing was uploaded for `patience` seconds, or the save can never be
        committed. `waits` is called every few seconds with how far the upload is.
        """
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
                # Time is up, or the daemon said before that the save will not be committed.
                return False
            waits(status)

    def status(self) -> DaemonStatus | None:
        """Return the daemon's status; None where it does not answer. The next flush reconnects."""
        try:
            return self._connection.call(messages.GetStatus(), DaemonStatus, ANSWER_WITHIN)
        except DaemonUnavailable:
            return None

    # -- the rest ---------------------------------------------------------------------------------

    def urge(self) -> None:
        """Have the last save that is to be committed uploaded, even where not every one is."""
        self._tell(messages.Urge())

    def complain(self, message: str) -> None:
        """Report a problem of this worker's saves to people."""
        self._tell(messages.Complain(message))

    def leave(self, *, clean: bool) -> None:
        """Tell the daemon that this worker ends, and close the connection."""
        self.page.leave()
        try:
            request = messages.Leave(self.page.read(0).step, clean)
            self._connection.call(request, type(None), ANSWER_WITHIN)
        except DaemonUnavailable:
            pass
        self.close()

    def close(self) -> None:
        """Close the connection and tell the daemon nothing, as when this process dies."""
        self._connection.close()

    def _mapped(self, path: str) -> Slot:
        """Return the slot, mapped once, by the thread that needs it first."""
        with self._mapping:
            slot = self._slots.get(path)
            if slot is None or not slot.is_of(slot.path.stat()):
                slot = self._slots[path] = Slot(Path(path))
                self._written.discard(path)
            return slot

    def _map_ahead(self, mapped: Callable[[str, memoryview], None]) -> None:
        """Map all slots while training goes on.

        So the first save into each slot costs no more than later ones.
        """
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
            # Slots are mapped when they are granted. The daemon reports why it has none.
            pass

    def _tell(self, request: messages.Request) -> None:
        try:
            self._connection.send(request)
        except DaemonUnavailable:
            pass

    def _insist(self, request: messages.Request, kind: type[T], timeout: float) -> T:
        """Call, and repeat the call to the next daemon when this one dies."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._connection.call(request, kind, deadline - time.monotonic())
            except DaemonUnavailable:
                left = deadline - time.monotonic()
                if left <= 0 or not self._reconnect(min(left, REPLACED_WITHIN)):
                    raise

    def _ask_for_slots(self, prepare: messages.Prepare) -> None:
        """Announce the size of slots and ask for the first one.

        Raises `ArenaFull` where they do not fit.
        """
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
        """Attach. The daemon may have died and be about to be replaced when a worker starts."""
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
        """Attach to a new daemon, which serves the same arena. Returns whether there was one."""
        deadline = time.monotonic() + within
        while True:
            try:
                self._connection, _ = self._connected()
                if self._sealing is not None:
                    self._connection.send(self._sealing)
                if self._prepare is not None:
                    with suppress(ArenaFull):  # The next save asks for slots again.
                        self._ask_for_slots(self._prepare)
                return True
            # A daemon that has not been told of the round yet refuses as well.
            except CheckpointsError:
                if time.monotonic() + RECONNECT_EVERY > deadline:
                    return False
                time.sleep(RECONNECT_EVERY)


def _sent(status: DaemonStatus | None) -> tuple[int, int, int]:
    """Return how far the upload is: epoch, step and bytes; zeros while there is none."""
    upload = status.upload if status is not None else None
    return (upload.epoch, upload.step, upload.done) if upload is not None else (0, 0, 0)
