"""What is known of a save on its way to the object store: slots, progress, files stored so far."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.format.manifest import Shard
from spotelastic_checkpoints.memory.arena import Slot, SlotHeader
from spotelastic_checkpoints.types import Commit


@dataclass(frozen=True, slots=True)
class Save:
    """The slots of one step on this node, with the commit that they are part of."""

    commit: Commit
    incarnation: str
    """Incarnation of the round that sealed the slots."""
    slots: tuple[tuple[Slot, SlotHeader], ...]

    @property
    def paths(self) -> set[Path]:
        """Files of the slots."""
        return {slot.path for slot, _ in self.slots}

    @property
    def nbytes(self) -> int:
        """Bytes that this node uploads of the save."""
        return sum(header.owned_bytes for _, header in self.slots)


class UploadProgress:
    """Counts the bytes of one attempt at an upload; thread-safe."""

    def __init__(self, found: int = 0) -> None:
        """Start to count. `found` bytes are in the store already."""
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._found = self.done = found
        self.error: Exception | None = None
        """Error of the first file that failed, or the reason why the save was given up. No further
        file is begun once it is set.
        """

    def add(self, nbytes: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self.done += nbytes

    def find(self, nbytes: int) -> None:
        """Count bytes that were found to be in the store already."""
        with self._lock:
            self.done += nbytes
            self._found += nbytes

    @property
    def rate(self) -> float:
        """Bytes per second since the attempt began."""
        return (self.done - self._found) / max(time.monotonic() - self._begun, 1e-3)


class Files:
    """The files of one save that are in the store.

    An attempt goes on where the last one ended. A file counts only as long as the slot still holds
    what it was made from.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, tuple[int, dict[int, Shard]]] = {}

    def of(self, rank: int, generation: int) -> dict[int, Shard]:
        """Return the rank's stored files by number; new ones are added to this dict.

        They are forgotten when the slot's `generation` has changed.
        """
        known = self._ranks.get(rank)
        if known is None or known[0] != generation:
            known = self._ranks[rank] = generation, {}
        return known[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all stored files."""
        return sum(map(nbytes_of, (files for _, files in self._ranks.values())))

    def __len__(self) -> int:
        return sum(len(files) for _, files in self._ranks.values())


def nbytes_of(files: Mapping[int, Shard]) -> int:
    """Return the bytes of these stored files."""
    return sum(file.nbytes for file in files.values())
