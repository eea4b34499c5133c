"""Checks whether the disk of a storage folder has room for a first checkpoint."""

import shutil
from contextlib import suppress

from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.open import folder_of
from spotelastic_checkpoints.types import RoundInfo

SLACK = 1 << 20
"""Largest number of bytes of a slot that are no content. A smaller shortage is not certain."""


def check_room(url: str, round_: RoundInfo | None, nbytes: int) -> None:
    """Raise `StorageRefused` where a run that begins could not save `nbytes` once.

    A run that resumes is not stopped: its disk may be full only for a while.
    """
    folder = folder_of(url)
    if folder is None or round_ is None or round_.resume.kind != "fresh":
        return
    with suppress(OSError):  # What is wrong with the folder, the claim has reported.
        free = shutil.disk_usage(folder).free
        if free + SLACK < nbytes:
            raise StorageRefused(
                f"storage {folder}: {free >> 20} MiB are free, and one checkpoint takes "
                f"{nbytes >> 20} MiB: make room, or name another storage"
            )
