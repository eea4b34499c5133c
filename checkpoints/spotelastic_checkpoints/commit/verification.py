"""The note that a checkpoint was read again to its last byte: `verified.json`, beside its shards.

It goes with them when the checkpoint is collected. Nothing that reads checkpoints looks at it.
"""

from contextlib import suppress
from datetime import datetime

import msgspec

from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.storage.port import Storage
from spotelastic_checkpoints.types import Commit

NAME = "verified.json"


class Verified(msgspec.Struct, frozen=True):
    """`at` is by the clock of whoever verified."""

    at: datetime


def key(commit: Commit) -> str:
    return f"{folder(commit)}/{NAME}"


def since(storage: Storage, commit: Commit) -> datetime | None:
    """When the checkpoint was last found to be as it was saved; None where that is not known."""
    note = storage.get(key(commit))
    if note is not None:
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(note.data, type=Verified).at
    return None


def leave(storage: Storage, commit: Commit, at: datetime) -> None:
    """In the place of an earlier note. Raises `StorageRefused` where nothing may be written."""
    storage.put(key(commit), memoryview(msgspec.json.encode(Verified(at))))
    record = storage.get(f"{folder(commit)}/{metadata.NAME}")
    if record is None or metadata.is_tombstone(record.data):
        # It was collected meanwhile, and whoever did so may have been past this key already.
        withdraw(storage, commit)


def withdraw(storage: Storage, commit: Commit) -> None:
    """The checkpoint is not what it was any more."""
    storage.delete([key(commit)])
