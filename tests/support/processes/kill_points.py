"""Lists the points at which the fault tests kill a process, by the process that reaches them."""

from spotelastic_checkpoints.crash_points import Stage


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
