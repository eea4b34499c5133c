"""Marks an arena whose daemon outlives its script, until the daemon has made its last upload.

The next script of the same run waits while the mark is there, and claims the storage only then.
"""

from contextlib import suppress
from pathlib import Path

_NAME = "ending"


def mark(arena: Path, owner: str, storage: str) -> None:
    """Write the mark."""
    with suppress(OSError):  # Slots may have left no room for it.
        (arena / _NAME).write_text(_content(owner, storage))


def is_marked(arena: Path, owner: str, storage: str) -> bool:
    """Return whether a daemon of this run is making its last upload from this arena."""
    try:
        return (arena / _NAME).read_text() == _content(owner, storage)
    except OSError:  # The arena may also be another user's.
        return False


def _content(owner: str, storage: str) -> str:
    return f"{owner}\n{storage}\n"
