"""Names every point at which the fault tests kill a worker or a daemon, by the process that reaches
it. `test_kill_points.py` compares them with the code.
"""

from enum import StrEnum


class Stage(StrEnum):
    """The points, in the order in which a process reaches them."""

    # A worker that saves.
    SLOT_OPENED = "slot-opened"
    """The slot is marked as being written; nothing is copied yet."""
    SLOT_COPIED = "slot-copied"
    """All bytes are in the slot; it is not sealed."""
    SLOT_SEALED = "slot-sealed"
    """The slot is sealed; the daemon does not know yet."""
    SLOT_REPORTED = "slot-reported"
    # A worker that trains while a thread copies.
    OVERLAP_BEGUN = "overlap-begun"
    """The thread has begun to write the slot."""
    # A worker that restores.
    RESTORE_OPENED = "restore-opened"
    """The worker knows what the source holds; no byte has been fetched."""
    RESTORE_FETCHED = "restore-fetched"
    """Some bytes have been fetched, and may be in the tensors."""
    RESTORE_READ = "restore-read"
    """The worker has read everything and told the daemon."""
    # The daemon, making slots.
    FURNISH_ALLOCATED = "furnish-allocated"
    """The slot's file has its length."""
    FURNISH_POPULATED = "furnish-populated"
    """The slot is in memory; the worker does not know yet."""
    # The daemon, committing.
    UPLOAD_STARTED = "upload-started"
    SHARD_HASHED = "shard-hashed"
    SHARD_PART_PUT = "shard-part-put"
    """One part of a large shard is stored, or all of a shard that is sent in one request."""
    SHARD_PUT = "shard-put"
    MANIFEST_PUT = "manifest-put"
    STEP_COMPLETE = "step-complete"
    """All manifests are there; the commit record is not written yet."""
    RECORD_PUT = "record-put"
    """The step is committed; LATEST does not name it yet."""
    LATEST_MOVED = "latest-moved"
    TOMBSTONE_PUT = "tombstone-put"
    SHARDS_DELETED = "shards-deleted"
    EPOCH_CLAIMED = "epoch-claimed"
    # The daemon, fetching for a worker that restores.
    FETCH_OPENED = "fetch-opened"
    """The file for fetched bytes exists and is empty."""
    FETCH_WROTE = "fetch-wrote"
    """Some bytes have been fetched."""
    FETCH_VERIFIED = "fetch-verified"
    """All bytes have been fetched and match; the worker does not know yet."""
    # The daemon of a node whose replica another one keeps.
    REPLICA_OFFERED = "replica-offered"
    """It knows which save to offer; the other one does not."""
    REPLICA_SENT = "replica-sent"
    """Some bytes are sent; their checksum is not."""
    # The daemon that keeps the replica.
    REPLICA_OPENED = "replica-opened"
    """The files are marked as being written; no byte has come."""
    REPLICA_WROTE = "replica-wrote"
    """Some bytes have come."""
    REPLICA_COPIED = "replica-copied"
    """All bytes are in the files; none is sealed."""
    REPLICA_SEALED = "replica-sealed"
    """At least one file is sealed."""


def _named(prefix: str) -> tuple[Stage, ...]:
    return tuple(stage for stage in Stage if stage.startswith(prefix))


WORKER_STAGES = _named("slot-")
OVERLAP_STAGES = _named("overlap-")
RESTORE_STAGES = _named("restore-")
FURNISH_STAGES = _named("furnish-")
FETCH_STAGES = _named("fetch-")
REPLICA_STAGES = _named("replica-")
_OTHERS = {
    *WORKER_STAGES,
    *OVERLAP_STAGES,
    *RESTORE_STAGES,
    *FURNISH_STAGES,
    *FETCH_STAGES,
    *REPLICA_STAGES,
}
COMMIT_STAGES = tuple(stage for stage in Stage if stage not in _OTHERS)
