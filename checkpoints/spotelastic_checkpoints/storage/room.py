"""Whether a folder that is the storage has room for a checkpoint at all."""

import shutil
from contextlib import suppress

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.open import folder_of
from spotelastic_checkpoints.types import RoundInfo

SLACK = 1 << 20
"""Bytes of a slot that are no contents, at most: a smaller difference says nothing."""


def check_room(url: str, round_: RoundInfo | None, nbytes: int) -> None:
    """Raises `StorageRefused` where a run that begins could not save `nbytes` once. One that goes
    on is left alone: its disk may be full for a while only."""
    folder = folder_of(url)
    if folder is None or round_ is None or round_.resume.kind != "fresh":
        return
    with suppress(OSError):  # what is wrong with the folder, the claim has told
        free = shutil.disk_usage(folder).free
        if free + SLACK < nbytes:
            raise StorageRefused(
                f"storage {folder}: {free >> 20} MiB are free, and one checkpoint takes "
                f"{nbytes >> 20} MiB: make room, or name another storage"
            )
