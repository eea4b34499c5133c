"""Describes what a rank had in its state at the first save of a run, to compare it later.

A worker leaves one in the arena's folder before that save is sealed. When the save has become the
run's first commit, a process of its own reads it back from the store, and compares.
"""

from pathlib import Path
from typing import Self

import msgspec

from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.types import Commit

_NAME = "first-save-{step}-{rank}.json"


class FirstSave(msgspec.Struct, frozen=True):
    """What a rank had in its state when it was saved."""

    rank: int
    step: int
    digests: dict[str, bytes]
    """Hashes of tensors and values, by `key`; an empty one where it cannot be told."""
    search_path: tuple[str, ...] = ()
    """Folders in which the script finds modules."""
    allowed: tuple[str, ...] = ()
    """What the script lets values refer to, each as "module:name"."""

    def leave(self, folder: Path) -> None:
        """Write it into this folder, as a whole."""
        path = folder / _NAME.format(step=self.step, rank=self.rank)
        written = path.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(self))
        written.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one. Raises `msgspec.MsgspecError` or `OSError` where that is not possible."""
        return from_json(path.read_bytes(), cls)


def key(fqn: str, offsets: tuple[int, ...]) -> str:
    """Return the name of a value, or of the part of a tensor that begins at these offsets."""
    return f"{fqn}{list(offsets)}" if any(offsets) else fqn


def left(folder: Path, commit: Commit) -> list[Path]:
    """Return those that the workers of this node have left for a save."""
    return sorted(folder.glob(_NAME.format(step=commit.step, rank="*")))
