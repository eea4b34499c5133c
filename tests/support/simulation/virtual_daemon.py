"""Simulates the checkpoint daemon of a node in virtual time: its slots, and which save goes up.

In place of `spotelastic_checkpoints.daemon`. Which slots are of the round's history, and which of
them is the newest, is decided by the real functions (`memory/slots.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spotelastic_checkpoints.daemon.daemon_state import DaemonState
from spotelastic_checkpoints.errors import CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.types import Commit, RoundInfo, Snapshot
from support.simulation.virtual_uploads import VirtualSave, VirtualUploads

from spotelastic.agent.node_processes import FLUSH_TIMEOUT
from spotelastic.agent.state import events
from spotelastic.model.round import Round

if TYPE_CHECKING:
    from support.simulation.virtual_node import SimNode

SLOTS = 2
CLAIMED_IN = 0.05
LOOK = 0.05
"""Seconds between two looks of somebody who waits for a commit."""


@dataclass(frozen=True, slots=True)
class VirtualSlot:
    snapshot: Snapshot
    due: bool
    """Whether it is to be committed."""


class VirtualDaemon:
    def __init__(self, node: "SimNode") -> None:
        self._node, self._world = node, node.world
        self._slots: list[VirtualSlot] = []
        """In shared memory, where the next daemon finds them."""
        self._remembered = DaemonState()
        """On disk."""
        self._uploads: VirtualUploads | None = None
        """None while no daemon lives."""
        self._overdue = False
        """A save that was to be committed has been overwritten: the next one goes up instead."""

    # -- its life ---------------------------------------------------------------------------------

    def start(self) -> None:
        commits = self._world.bucket.commits()
        self._uploads = VirtualUploads(self._node, commits, self._holds, self._take_newest)
        self._overdue = False
        self._adopt()
        self._want()

    def end(self) -> None:
        if self._uploads is not None:
            self._uploads.end()
        self._uploads = None

    @property
    def serves(self) -> bool:
        return self._uploads is not None

    @property
    def uploads(self) -> VirtualUploads:
        if self._uploads is None:
            raise DaemonUnavailable("it is gone")
        return self._uploads

    def asked(self) -> None:
        """Somebody asks it something: it answers, or is gone."""
        assert self.uploads is not None

    # -- requests ---------------------------------------------------------------------------------

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(slot.snapshot for slot in self._slots)

    def begin(self, round_: RoundInfo) -> None:
        """The round begins on this node, or has got an epoch."""
        self.asked()
        self._remembered = self._remembered.begun(round_)
        self._adopt()
        self._want()

    def end_round(self) -> None:
        self._want()

    def hurry(self) -> None:
        """This node is about to go: its newest save is uploaded, due or not."""
        self._want(every_save=True)

    def claim(self, round_: Round) -> None:
        """Claims an epoch of the storage, and tells the agent."""
        self._world.after(CLAIMED_IN, partial(self._claim, self.uploads, round_))

    def _claim(self, uploads: VirtualUploads, round_: Round) -> None:
        try:
            if uploads is not self._uploads:
                raise DaemonUnavailable("it is gone")
            history = self._remembered.history((round_.incarnation, round_.parent))
            claim = uploads.commits.claim(history=history, run_id=round_.run_id)
        except CheckpointsError as error:
            self._node.post(events.Claimed(round_.incarnation, 0, None, str(error)))
            return
        self._world.bucket.claimed(claim)
        uploads.learned(claim.commit)
        self._node.post(
            events.Claimed(round_.incarnation, claim.epoch, claim.commit, run_id=claim.run_id)
        )

    def flush(self, round_: str) -> None:
        """Tells the agent when all that is due is committed, or can no longer be."""
        self._want()
        self._flush(self.uploads, round_, self._world.now + FLUSH_TIMEOUT)

    def _flush(self, uploads: VirtualUploads, round_: str, until: float) -> None:
        over = uploads is not self._uploads or self._world.now >= until
        if over or self.is_committed() is not None:
            self._node.post(events.Flushed(round_))
        else:
            self._world.after(LOOK, partial(self._flush, uploads, round_, until))

    def is_committed(self) -> bool | None:
        """Whether all that is due is committed. None: that is not known yet."""
        uploads = self._uploads
        if uploads is None:
            return None
        due, done = self._newest_due(), uploads.settled
        if due is None and not uploads.busy():
            return True
        if due is not None and done is not None and done >= due and due.epoch:
            newest = uploads.newest
            return newest is not None and newest >= due
        return None

    def _newest_due(self) -> Commit | None:
        round_ = self._remembered.round
        if round_ is None:
            return None
        ours = [s for s in self._slots if s.snapshot.incarnation == round_.incarnation and s.due]
        return Commit(round_.epoch, max(s.snapshot.step for s in ours)) if ours else None

    # -- saves ------------------------------------------------------------------------------------

    def seal(self, snapshot: Snapshot, *, due: bool, urgent: bool) -> bool:
        """Seals a save. False: there was no slot for it. Uploads give way to an urgent one."""
        known = next((slot for slot in self._slots if slot.snapshot == snapshot), None)
        if known is not None:  # a step may be sealed twice: as a snapshot, then to be committed
            self._slots.remove(known)
            due = due or known.due
        elif not self._make_room(urgent=urgent):
            return False
        self._slots.append(VirtualSlot(snapshot, due))
        if due or self._overdue:
            self._want()
        return True

    def _make_room(self, *, urgent: bool) -> bool:
        uploads = self._uploads
        while len(self._slots) >= SLOTS:
            pinned = uploads.pinned if uploads is not None else []
            in_use = uploads.in_use if uploads is not None else []
            free = self._dispensable(pinned) or self._dispensable(in_use)
            if free:
                self._slots.remove(free[0])
            elif not (urgent and uploads is not None and uploads.give_way()):
                return False
        return True

    def _dispensable(self, pinned: Sequence[Snapshot]) -> list[VirtualSlot]:
        """Returns the slots that may be overwritten, the least valuable first."""
        newest_first = self._newest_first()
        usable = [slot for slot in newest_first if self._on_lineage(slot.snapshot)]
        free = [slot for slot in newest_first if slot not in usable[:1]]
        free = [slot for slot in free if slot.snapshot not in pinned]
        return sorted(free, key=lambda slot: (slot in usable, -newest_first.index(slot)))

    def _newest_first(self) -> list[VirtualSlot]:
        round_ = self._remembered.round
        if round_ is None:
            return list(reversed(self._slots))
        order = slots.newest_first(self.snapshots, round_)
        return sorted(self._slots, key=lambda slot: order.index(slot.snapshot))

    def _on_lineage(self, snapshot: Snapshot) -> bool:
        round_ = self._remembered.round
        return round_ is None or slots.on_lineage(round_, snapshot.incarnation, snapshot.step)

    def _holds(self, snapshot: Snapshot) -> bool:
        return snapshot in self.snapshots

    def _take_newest(self) -> None:
        self._overdue = True
        self._want()

    def _adopt(self) -> None:
        round_ = self._remembered.round
        if round_ is not None:
            self.uploads.adopt(round_.epoch, self._on_lineage)

    def _want(self, *, every_save: bool = False) -> None:
        """Has the newest save that is due (or just the newest) uploaded."""
        if self._uploads is None or self._remembered.round is None:
            return
        for slot in self._newest_first():
            snapshot = slot.snapshot
            epoch = self._remembered.epochs.get(snapshot.incarnation, 0)
            due = slot.due or every_save or self._overdue
            if epoch and due and self._on_lineage(snapshot):
                save = VirtualSave(Commit(epoch, snapshot.step), snapshot)
                if self._uploads.want(save):
                    self._overdue = False
                    return
