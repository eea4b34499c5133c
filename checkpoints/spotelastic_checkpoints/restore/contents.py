"""Gives a worker that restores a view of what there is to read, in slots and in fetched ranges.

A slot is read in place, and may be overwritten meanwhile: `check` finds that out afterwards. Needs
only msgspec.
"""

import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.memory.arena import HEADER, Slot
from spotelastic_checkpoints.types import Item, RestoreSet


class Piece(NamedTuple):
    """An item, and the file in this machine's shared memory that it is read from."""

    file: str
    item: Item


class Contents:
    """What a restore set holds, and where."""

    def __init__(self, restore_set: RestoreSet) -> None:
        """Open the slots and the file. Raises `RestoreFailed` where a slot no longer exists."""
        self.id = restore_set.id
        self.step = restore_set.step
        self.world_size = restore_set.world_size
        self.file = self._held(restore_set.file)
        """Path of the file that ranges are fetched into."""
        self._items = restore_set.items
        self._slots = [_slot(path) for path in restore_set.slots]
        self._generations = [slot.generation for slot in self._slots]

    def pieces(self) -> Iterator[Piece]:
        """Yield all items. Raises `RestoreFailed` where a slot has been overwritten."""
        for slot in self._slots:
            header, path = slot.header(), str(slot.path)
            if header is None or header.step != self.step:
                raise RestoreFailed(f"the slot {path} has been overwritten")
            for item in slot.items(header):
                yield Piece(path, replace(item, offset=item.offset + HEADER))
        for item in self._items:
            yield Piece(self.file, item)

    def _held(self, path: str) -> str:
        """Return a path that keeps naming the file that is there now.

        A daemon that takes over makes a file of the same name, with other ranges in it.
        """
        with suppress(FileNotFoundError):  # Without a file, the fetch says why.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, descriptor)
            return f"/proc/self/fd/{descriptor}"
        return path

    @property
    def fetched(self) -> bool:
        """Whether any of it has to be fetched first."""
        return bool(self._items)

    @property
    def brought(self) -> int:
        """Bytes of memory that the file takes. They grow while ranges are fetched."""
        with suppress(FileNotFoundError):
            return Path(self.file).stat().st_blocks * 512
        return 0

    def check(self) -> None:
        """Raise `RestoreFailed` where a slot was overwritten since this was opened."""
        for slot, generation in zip(self._slots, self._generations, strict=True):
            if slot.generation != generation:
                raise RestoreFailed(f"the slot {slot.path} was overwritten while it was read")


def _slot(path: str) -> Slot:
    try:
        return Slot(Path(path))
    except FileNotFoundError:
        raise RestoreFailed(f"the slot {path} no longer exists") from None
