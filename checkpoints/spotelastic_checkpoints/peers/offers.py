"""Offers a node's newest sealed save to the daemon that keeps its replica; thread-safe.

Training must never wait for a replica. So what is offered is overwritten as late as possible, but
before a save is left out. The one that reads it finds that out.
"""

import threading
import time
from pathlib import Path

from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.peers.messages import AwaitOffer, Offer, OfferedSlot

ANSWER_AFTER = 3.0
"""Seconds after which a request is answered although there is no save yet."""
FORGOTTEN_AFTER = 10.0
"""Seconds without a read after which nobody seems to read what was offered."""


class Offers:
    """What one node offers, and which of its slots are being read."""

    def __init__(self, arena: Arena, answer_after: float = ANSWER_AFTER) -> None:
        self._arena = arena
        self._answer_after = answer_after
        self._changed = threading.Condition()
        self._paused = False
        self._offered: frozenset[Path] = frozenset()
        self._read_at = 0.0

    def sealed(self) -> None:
        """Look for a save to offer: all workers of the node have sealed one."""
        with self._changed:
            self._changed.notify_all()

    def pause(self) -> None:
        """Offer nothing more: the node is about to go, and its upload comes first."""
        with self._changed:
            self._paused, self._offered = True, frozenset()

    @property
    def in_use(self) -> frozenset[Path]:
        """Slots that are being read, or will be soon."""
        with self._changed:
            lately = time.monotonic() - self._read_at < FORGOTTEN_AFTER
            return self._offered if lately else frozenset()

    def is_read(self, path: Path) -> bool:
        """Note that a slot is read. Returns whether it was offered."""
        with self._changed:
            if path not in self._offered:
                return False
            self._read_at = time.monotonic()
            return True

    def next(self, request: AwaitOffer) -> Offer | None:
        """Wait for a later save than the one that the keeper has; None if there is none yet.

        Only what the round of both nodes has sealed is offered: whatever is older may belong to
        another history.
        """
        deadline = time.monotonic() + self._answer_after
        with self._changed:
            self._offered = frozenset()
            while True:
                found = None if self._paused else self._newest(request)
                left = deadline - time.monotonic()
                if found is not None or left <= 0:
                    return found
                self._changed.wait(left)

    def _newest(self, request: AwaitOffer) -> Offer | None:
        sealed = self._arena.sealed()
        saves = slots.snapshots(header for _, header in sealed)
        later = [
            save
            for save in saves
            if save.incarnation == request.incarnation and save.step > request.after
        ]
        if not later:
            return None
        save = max(later, key=lambda save: save.step)
        found = slots.members(sealed, save.incarnation, save.step, save.layout)
        if not any(header.alone for _, header in found):
            return None
        self._offered = frozenset(slot.path for slot, _ in found)
        self._read_at = time.monotonic()
        return Offer(
            tuple(
                OfferedSlot(slot.generation, header, slot.items(header)[: header.alone])
                for slot, header in found
            )
        )
