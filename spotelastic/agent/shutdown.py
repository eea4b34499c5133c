"""Decides how a node ends: with its job, on request, or because it cannot go on (pure).

Parts of `decide.py`. Must never happen: a node that cannot end its workers holds up the others. It
leaves the run.
"""

import math
import signal

from spotelastic.agent import actions as do
from spotelastic.agent.state.values import NodeState, local_rank_of
from spotelastic.agent.state.worker_changes import GONE_WITHIN
from spotelastic.rendezvous import proposed
from spotelastic.rendezvous.view import RunState

STUCK = 2
"""Exit code of a node that cannot end its workers, or is sick."""


def grace(local: NodeState, now: float) -> do.Steps:
    """Kills workers that were asked to end, and have not, when their time is up."""
    workers = local.workers
    if workers is None or not workers.alive or workers.kill_at == math.inf:
        return
    yield do.KillWorkers() if now >= workers.kill_at else do.Wake(workers.kill_at)


def stuck(local: NodeState, now: float) -> do.Steps:
    workers = local.workers
    if workers is None or not workers.alive or workers.gone_by == math.inf:
        return
    if now < workers.gone_by:
        yield do.Wake(workers.gone_by)
        return
    ranks = sorted(workers.first_rank + local_rank_of(name) for name in workers.alive)
    yield do.Exit(
        STUCK,
        f"rank {', '.join(map(str, ranks))} cannot be ended: SIGKILL has had no effect for "
        f"{GONE_WITHIN:g} s (stuck in a driver or a file system). This node leaves; restart the "
        "machine before it is used again",
    )


def end(local: NodeState, code: int) -> do.Steps:
    """End the workers, then this node: the job has ended."""
    workers = local.workers
    if workers is not None and workers.alive:
        if not workers.killed:
            yield do.KillWorkers(signal.SIGKILL if code else signal.SIGTERM, but_failing=True)
        return
    yield do.Exit(code)


def leave(local: NodeState, seen: RunState, now: float) -> do.Steps:
    """Leaves on request: the others agree on a save and go on without this node; then it ends.

    If they do not within the time given, or etcd does not answer, the workers are just ended. Those
    of a sick node have been killed (`illness.py`); the others go on from what they have.
    """
    workers, round_, fault = local.workers, seen.round, local.health.fault
    notice = local.departure.notice
    late = notice.deadline if notice is not None else None
    ill = fault is not None
    if workers is not None and workers.alive and not (ill and late is not None and now >= late):
        if (late is None or now >= late) and not workers.killed:
            yield do.KillWorkers(signal.SIGTERM)
        elif late is not None and now < late:
            yield do.Wake(late)
        return
    in_round = (
        round_ is not None
        and local.membership.registered
        and local.node is not None
        and round_.member(local.node.id) is not None
    )
    if in_round and workers is not None and not workers.killed:
        return
    if in_round and ill and late is not None and now < late:  # its slots may be needed
        yield do.Wake(late)
        return
    serves_until = _serves_until(local, seen)
    if now < serves_until:
        yield do.Wake(serves_until)
        return
    flush = f"leave-{local.node.incarnation}" if local.node is not None else ""
    if local.departure.left or not flush or not local.store.daemon:
        if local.reports.step and "left" not in local.reports.said:
            yield do.Say("left", _farewell(local))
        if fault is not None:
            yield do.Exit(STUCK, f"{fault.line}. This node leaves: do not use it in this state")
        yield do.Exit(128 + local.departure.leaving)
    elif local.store.flushing != flush:
        yield do.FlushUploads(flush)


def _farewell(local: NodeState) -> str:
    """Says whether what this node has done reached the object store."""
    end = local.agreement.end
    last = max(local.reports.step, end.last_step if end is not None else 0)
    commit = local.store.commit
    if commit is None:
        return f"leaves after step {last}; nothing was committed"
    epoch = local.workers.epoch if local.workers is not None else 0
    # A later epoch may begin with a lower step: none is committed by that alone.
    if commit.epoch >= epoch and commit.step >= last:
        return f"leaves after step {last}, which is committed"
    return f"leaves after step {last}; the newest commit is step {commit.step}"


def _serves_until(local: NodeState, seen: RunState) -> float:
    """Return until when the others may restore from slots that only this node has."""
    round_, node, notice = seen.round, local.node, local.departure.notice
    if round_ is None or not round_.members or node is None or not local.membership.registered:
        return 0.0
    if local.agreement.end is None or notice is None or notice.deadline is None:
        return 0.0
    end = notice.deadline
    if round_.phase == "proposed":
        return min(end, seen.round_at + proposed.OFFER_WITHIN)
    return end if round_.resume.needs(node.id) else 0.0
