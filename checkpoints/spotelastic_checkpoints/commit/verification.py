"""Reads and writes `verified.json`, the note that a checkpoint's bytes were all read and matched.

The note is stored beside the shards and deleted with them. Restores do not look at it.
"""

from contextlib import suppress
from datetime import datetime

import msgspec

from spotelastic_checkpoints import checksummed_json
from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.types import Commit

NAME = "verified.json"
"""Name of the note in the step's folder."""


class Verified(msgspec.Struct, frozen=True):
    """Content of the note. `at` is by the clock of the machine that verified the checkpoint."""

    at: datetime


def key(commit: Commit) -> str:
    """Return the key of the note."""
    return f"{folder(commit)}/{NAME}"


def since(storage: Storage, commit: Commit) -> datetime | None:
    """Return when the checkpoint was last verified; None where that is not known."""
    note = storage.get(key(commit))
    if note is not None:
        with suppress(msgspec.MsgspecError):
            return checksummed_json.decode(note.data, Verified).at
    return None


def leave(storage: Storage, commit: Commit, at: datetime) -> None:
    """Write the note, over an earlier one.

    Raises `StorageRefused` where the storage is read-only.
    """
    storage.put(key(commit), memoryview(checksummed_json.encode(Verified(at))))
    record = storage.get(f"{folder(commit)}/{metadata.NAME}")
    if record is None or metadata.is_tombstone(record.data):
        # The checkpoint was collected meanwhile, possibly before the note was written.
        withdraw(storage, commit)


def withdraw(storage: Storage, commit: Commit) -> None:
    """Delete the note: the checkpoint was found to be damaged."""
    storage.delete([key(commit)])
