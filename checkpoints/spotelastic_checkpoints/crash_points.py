"""Every point of the pipeline at which a process may die: the fault tests kill at each of them.

A stage is named where it has just been reached. With `SPOTELASTIC_DIE_AT=<stage>` in a process's
environment it ends there, as by SIGKILL; without it `reached` does nothing.
"""

import os
import signal
from enum import StrEnum


class Stage(StrEnum):
    # the worker
    SLOT_OPENED = "slot-opened"
    """Marked as being written; nothing copied yet."""
    SLOT_COPIED = "slot-copied"
    """All bytes are there; not sealed."""
    SLOT_SEALED = "slot-sealed"
    """Sealed; the daemon has not been told."""
    SLOT_REPORTED = "slot-reported"
    # the worker, whose training goes on beside the copy
    OVERLAP_BEGUN = "overlap-begun"
    """The slot is being written, by another thread."""
    # the worker that restores
    RESTORE_OPENED = "restore-opened"
    """It knows what there is; nothing of it is here."""
    RESTORE_FETCHED = "restore-fetched"
    """Some of it is, and may be in the tensors."""
    RESTORE_READ = "restore-read"
    """It has all, and the daemon knows."""
    # the daemon, which makes slots
    FURNISH_ALLOCATED = "furnish-allocated"
    """The slot's file has its length."""
    FURNISH_POPULATED = "furnish-populated"
    """It is in memory; the worker has not been told."""
    # the daemon, which commits
    UPLOAD_STARTED = "upload-started"
    SHARD_HASHED = "shard-hashed"
    SHARD_PART_PUT = "shard-part-put"
    """Of a large shard not all; of one that goes up in one request, all."""
    SHARD_PUT = "shard-put"
    MANIFEST_PUT = "manifest-put"
    STEP_COMPLETE = "step-complete"
    """All manifests were seen; no commit record yet."""
    RECORD_PUT = "record-put"
    """Committed; LATEST does not say so yet."""
    LATEST_MOVED = "latest-moved"
    TOMBSTONE_PUT = "tombstone-put"
    SHARDS_DELETED = "shards-deleted"
    EPOCH_CLAIMED = "epoch-claimed"
    # the daemon, for a worker that restores
    FETCH_OPENED = "fetch-opened"
    """The file is there, with nothing in it."""
    FETCH_WROTE = "fetch-wrote"
    """Some of it has come."""
    FETCH_VERIFIED = "fetch-verified"
    """All has, and matches; the worker has not been told."""


def _named(prefix: str) -> tuple[Stage, ...]:
    return tuple(stage for stage in Stage if stage.startswith(prefix))


WORKER_STAGES = _named("slot-")
OVERLAP_STAGES = _named("overlap-")
RESTORE_STAGES = _named("restore-")
FURNISH_STAGES = _named("furnish-")
FETCH_STAGES = _named("fetch-")
_OTHERS = {*WORKER_STAGES, *OVERLAP_STAGES, *RESTORE_STAGES, *FURNISH_STAGES, *FETCH_STAGES}
COMMIT_STAGES = tuple(stage for stage in Stage if stage not in _OTHERS)

_DIE_AT = os.environ.get("SPOTELASTIC_DIE_AT", "")


def reached(stage: Stage) -> None:
    if stage == _DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)
