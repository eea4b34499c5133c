"""What a restore set holds, and where: for the worker that reads it. Stdlib and msgspec only."""

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
    """An item, in a file of this machine's shared memory."""

    file: str
    item: Item


class Contents:
    """Slots are read in place, so that they must not be overwritten meanwhile: see `check`."""

    def __init__(self, restore_set: RestoreSet) -> None:
        self.id = restore_set.id
        self.step = restore_set.step
        self.world_size = restore_set.world_size
        self.file = self._held(restore_set.file)
        """Its ranges are there once they have been fetched."""
        self._items = restore_set.items
        self._slots = [_slot(path) for path in restore_set.slots]
        self._generations = [slot.generation for slot in self._slots]

    def pieces(self) -> Iterator[Piece]:
        for slot in self._slots:
            header, path = slot.header(), str(slot.path)
            if header is None or header.step != self.step:
                raise RestoreFailed(f"the slot {path} has been overwritten")
            for item in slot.items(header):
                yield Piece(path, replace(item, offset=item.offset + HEADER))
        for item in self._items:
            yield Piece(self.file, item)

    def _held(self, path: str) -> str:
        """Another name of the file that is there now, and is this one as long as we live: a daemon
        that takes over makes a file of the same name, with other ranges in it."""
        with suppress(FileNotFoundError):  # which the fetch explains
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, descriptor)
            return f"/proc/self/fd/{descriptor}"
        return path

    @property
    def fetched(self) -> bool:
        """Whether anything of it has to be brought here first."""
        return bool(self._items)

    @property
    def brought(self) -> int:
        """Bytes of memory that the file takes, which grow while something comes."""
        with suppress(FileNotFoundError):
            return Path(self.file).stat().st_blocks * 512
        return 0

    def check(self) -> None:
        """Raises `RestoreFailed` when a slot is no longer what it was."""
        for slot, generation in zip(self._slots, self._generations, strict=True):
            if slot.generation != generation:
                raise RestoreFailed(f"the slot {slot.path} was overwritten while it was read")


def _slot(path: str) -> Slot:
    try:
        return Slot(Path(path))
    except FileNotFoundError:
        raise RestoreFailed(f"the slot {path} has been given up") from None
