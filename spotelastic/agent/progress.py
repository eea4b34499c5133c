"""Builds a node's progress report from what its agent and its daemon know (pure)."""

from collections.abc import Iterable

from spotelastic_checkpoints.types import DaemonStatus, WorkerStep

from spotelastic.agent.checkpoints import newest_commit, upload_of
from spotelastic.agent.observe import NodeState
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Progress


def progress(node: str, local: NodeState, status: DaemonStatus, now: float) -> Progress:
    """Returns the node's progress report.

    Its round is that of the workers whose steps these are. That is the last round until the workers
    of the next one are started.
    """
    commit = newest_commit(status, local.commit)
    return Progress(
        node=node,
        round=local.workers.number if local.workers is not None else 0,
        step=max((w.step for w in status.workers), default=local.step),
        at=now,
        points=local.points,
        committed=commit.step if commit is not None else 0,
        epoch=commit.epoch if commit is not None else 0,
        upload=upload_of(status),
        step_time=max((w.step_time for w in status.workers), default=0.0),
        stall=max((w.stall for w in status.workers), default=0.0),
        commit_time=status.commit_time,
        whole=bool(status.snapshots) and status.snapshots[-1].whole,
        quiet=local.workers.silence.line if local.workers is not None else "",
        at_risk=local.notice is not None and local.notice.kind is not InterruptionKind.LEAVE,
    )


def highest(local: NodeState, steps: Iterable[WorkerStep]) -> int:
    """Returns the highest step that a worker has finished.

    A worker that has not restored yet counts as having finished the round's resumed step. One that
    has restored may be behind it, if its script or a damaged checkpoint sent it back.
    """
    resumed = local.workers.resumed if local.workers is not None else 0
    return max((worker.step or resumed for worker in steps), default=resumed)
