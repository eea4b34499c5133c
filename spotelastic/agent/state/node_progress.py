"""Builds a node's progress report from what its agent and its daemon know (pure)."""

from spotelastic_checkpoints.types import Commit, DaemonStatus

from spotelastic.agent.peer_traffic import NOTHING, Sent
from spotelastic.agent.state.values import NodeState
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Progress, Upload


def progress(
    node: str,
    local: NodeState,
    status: DaemonStatus,
    now: float,
    quiet: str,
    sent: Sent = NOTHING,
) -> Progress:
    """Return the node's progress report.

    Its round is that of the workers whose steps these are. That is the last round until the workers
    of the next one are started. `quiet`: the line about silent workers, if there is one. `sent`:
    what went to other nodes.
    """
    slowest = max(status.workers, key=lambda worker: worker.own_time, default=None)
    commit, notice = newest(status.commit, local.store.commit), local.departure.notice
    return Progress(
        node=node,
        round=local.workers.number if local.workers is not None else 0,
        step=max((w.step for w in status.workers), default=local.reports.step),
        at=now,
        points=local.reports.points,
        committed=commit.step if commit is not None else 0,
        epoch=commit.epoch if commit is not None else 0,
        upload=_upload(status),
        step_time=max((w.step_time for w in status.workers), default=0.0),
        stall=max((w.stall for w in status.workers), default=0.0),
        commit_time=status.commit_time,
        whole=bool(status.snapshots) and status.snapshots[-1].whole,
        quiet=quiet,
        at_risk=notice is not None and notice.kind is not InterruptionKind.LEAVE,
        # Once all workers have made the same measurement: it counts once.
        measured=min((w.measured for w in status.workers), default=0),
        own_time=slowest.own_time if slowest is not None else 0.0,
        waiting_time=slowest.waiting_time if slowest is not None else 0.0,
        rests=local.workers is not None and local.workers.can_rest,
        replica=_replica(local, status),
        replica_time=round(status.replica_time, 3),
        restore_time=round(status.restore_time, 6),
        restored_from=status.restored_from,
        crossed=sent.crossed,
        crossing=round(sent.crossing),
        sending=round(sent.sending),
        total=max((w.total for w in status.workers), default=0),
        samples=sum(w.samples for w in status.workers),
        not_finite=local.reports.not_finite,
        not_finite_at=local.reports.not_finite_at,
        unsaved=status.outage,
        logged=next((w.logged for w in status.workers if w.rank == 0), {}),
        gpu=local.health.use,
    )


def _replica(local: NodeState, status: DaemonStatus) -> int:
    """Return the newest step of the workers' round of which another node's shards are here."""
    if local.workers is None:
        return 0
    found = (each for each in status.snapshots if each.replica)
    steps = (each.step for each in found if each.incarnation == local.workers.round)
    return max(steps, default=0)


def _upload(status: DaemonStatus) -> Upload | None:
    upload = status.upload
    if upload is None:
        return None
    return Upload(upload.step, upload.done, upload.total, round(upload.rate))


def newest(*known: Commit | None) -> Commit | None:
    return max((commit for commit in known if commit is not None), default=None)
