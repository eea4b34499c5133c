"""Folds events into what an agent knows of its own node: one immutable value (pure).

The one writer of `NodeState`. Actions return events and never a changed state, so that a simulation
whose actions are simulated folds what the real ones would.

Must never happen:

- an action has been performed and its event is folded after that of the next one: the next one is
  decided, or performed, from a state in which the first has not happened;
- an event of a process counts for another one of that kind: children, rounds and claims are known
  by name, and what comes late is dropped.
"""

import math
from dataclasses import replace
from functools import singledispatch
from typing import Any

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.types import Commit

from spotelastic.agent.state import events
from spotelastic.agent.state.events import LocalEvent
from spotelastic.agent.state.health import following
from spotelastic.agent.state.values import (
    BLIND,
    NodeDeparture,
    NodeState,
    ProbedPeers,
    RestingWorkers,
    StorageClaim,
    Workers,
)
from spotelastic.agent.state.worker_changes import (
    GONE_WITHIN,
    PRESENT_WITHIN,
    asked_to_rest,
    changed,
    locals_of,
)
from spotelastic.model.gpu import GpuFault
from spotelastic.model.in_place import AUDITED, SICK
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Notice
from spotelastic.model.progress import Point
from spotelastic.rendezvous import agreement

WorkersEvent = events.WorkersEvent | messages.Attached | messages.WorkerLeft | messages.Sealed
POINTS_KEPT = 512
SPARE_AGAIN = 10.0
"""Seconds after which another spare store is started where one could not be, or has ended."""
LEAVE_WITHIN = 10.0
"""Seconds that a node which was asked to end gives the others to agree on a save. Long steps add to
it.
"""
TIDY_WITHIN = 10.0
"""Seconds before it is killed that a node keeps for its last uploads, and to take its etcd member
out of the count.
"""


def observe(local: NodeState, event: LocalEvent, now: float) -> NodeState:
    """Return the node's state after `event`."""
    return after(event, local, now)


@singledispatch
def after(event: LocalEvent, local: NodeState, now: float) -> NodeState:
    """Return the state after one kind of event: each has a function below."""
    raise TypeError(f"nothing is known of {event!r}")


# -- changes of one part --------------------------------------------------------------------------


def _membership(local: NodeState, **changed: Any) -> NodeState:
    return replace(local, membership=replace(local.membership, **changed))


def _departure(local: NodeState, **changed: Any) -> NodeState:
    return replace(local, departure=replace(local.departure, **changed))


def _store(local: NodeState, **changed: Any) -> NodeState:
    return replace(local, store=replace(local.store, **changed))


def _agreement(local: NodeState, **changed: Any) -> NodeState:
    return replace(local, agreement=replace(local.agreement, **changed))


def _reports(local: NodeState, **changed: Any) -> NodeState:
    return replace(local, reports=replace(local.reports, **changed))


def _retries(local: NodeState, **changed: Any) -> NodeState:
    return replace(local, retries=replace(local.retries, **changed))


def _said(local: NodeState, topic: str) -> NodeState:
    return _reports(local, said=local.reports.said | {topic})


# -- membership -----------------------------------------------------------------------------------


@after.register
def _(event: events.ZygoteStarted, local: NodeState, now: float) -> NodeState:
    return _membership(local, zygote=True, fingerprint=None)


@after.register
def _(event: events.ZygoteWarm, local: NodeState, now: float) -> NodeState:
    return _membership(local, fingerprint=event.fingerprint)


@after.register
def _(event: events.ZygoteGone, local: NodeState, now: float) -> NodeState:
    return _membership(local, zygote=False)


@after.register
def _(event: events.Registered, local: NodeState, now: float) -> NodeState:
    local = _membership(local, node=event.node, registered=True)
    local = _retries(_agreement(local, offered=""), refused_at=0.0)
    # The progress went with the old lease.
    return _reports(local, told_step=-1) if event.renewed else local


@after.register
def _(event: events.RegistrationRefused, local: NodeState, now: float) -> NodeState:
    since = local.retries.refused_at or now
    return _retries(local, refused_at=since, write_at=event.retry_at)


@after.register
def _(event: events.BecameHolder, local: NodeState, now: float) -> NodeState:
    local = _membership(local, leadership=event.leadership, nodes_seen=False)
    return _retries(local, lead_after=0)


@after.register
def _(event: events.HolderDeposed, local: NodeState, now: float) -> NodeState:
    return _membership(local, leadership=None, nodes_seen=False)


@after.register
def _(event: events.PeersProbed, local: NodeState, now: float) -> NodeState:
    before = local.membership.probed
    if before.round != event.round:
        before = ProbedPeers(event.round)
    nodes, refusing = before.nodes | event.nodes, before.refusing | event.refusing
    return _membership(local, probed=ProbedPeers(event.round, nodes, refusing))


@after.register
def _(event: events.NodesRead, local: NodeState, now: float) -> NodeState:
    return _membership(local, nodes_seen=local.membership.leadership is not None)


@after.register
def _(event: events.DecisionWritten, local: NodeState, now: float) -> NodeState:
    return _retries(local, lead_after=event.after, lead_at=event.again_at)


@after.register
def _(event: events.SessionLost, local: NodeState, now: float) -> NodeState:
    local = _membership(local, registered=False, leadership=None, nodes_seen=False)
    return _agreement(local, acknowledged=("", "", 0))  # went with the lease


@after.register
def _(event: events.StoreWentBack, local: NodeState, now: float) -> NodeState:
    """Let the workers go on until the next round of the new history.

    That round resumes from the newest commit.
    """
    local = _membership(local, node=None, registered=False, leadership=None, nodes_seen=False)
    return _agreement(_store(local, claim=None), vote=None)


@after.register
def _(event: events.WriteFailed, local: NodeState, now: float) -> NodeState:
    return _retries(local, write_at=event.retry_at)


# -- departure ------------------------------------------------------------------------------------


@after.register
def _(event: events.AgentStarted, local: NodeState, now: float) -> NodeState:
    local = replace(local, health=replace(local.health, unchecked=event.checks))
    return _departure(local, stays=event.stays)


@after.register
def _(event: events.Noticed, local: NodeState, now: float) -> NodeState:
    return _noticed(local, event.notice, now)


@after.register
def _(event: events.NoticeTold, local: NodeState, now: float) -> NodeState:
    left = tuple(notice for notice in local.departure.untold if notice != event.notice)
    return _departure(local, untold=left)


@after.register
def _(event: events.Signalled, local: NodeState, now: float) -> NodeState:
    local = _departure(local, leaving=event.signal)
    node = local.membership.node.id if local.membership.node is not None else ""
    within = LEAVE_WITHIN + agreement.time_for_steps(local.reports.step_time)
    if event.killed_after:
        within = max(event.killed_after - TIDY_WITHIN, event.killed_after / 2)
    leave = Notice(InterruptionKind.LEAVE, node, "signal", now, now, now + within)
    return _noticed(local, leave, now)


@after.register
def _(event: events.HealthEvent, local: NodeState, now: float) -> NodeState:
    before, local = local.health, replace(local, health=following(local.health, event, now))
    if local.health.fault is None or before.fault is not None:
        return local
    node = local.membership.node.id if local.membership.node is not None else ""
    end = now + LEAVE_WITHIN
    notice = Notice(InterruptionKind.UNHEALTHY, node, "health", now, now, end)
    return _departure(local, notice=notice, drained=False)  # whatever else was announced


def _noticed(local: NodeState, notice: Notice, now: float) -> NodeState:
    return replace(local, departure=noticed(local.departure, notice, now))


@after.register
def _(event: events.DrainWritten, local: NodeState, now: float) -> NodeState:
    return _departure(local, drained=True)


@after.register
def _(event: events.UploadHurried, local: NodeState, now: float) -> NodeState:
    return _departure(local, hurried=event.deadline)


# -- workers --------------------------------------------------------------------------------------


@after.register
def _(event: events.WorkersStarted, local: NodeState, now: float) -> NodeState:
    workers = Workers(
        event.round,
        event.number,
        event.first_rank,
        event.epoch,
        now,
        event.alive,
        resumed=event.resumed,
    )
    return _in_round(local, workers)


@after.register
def _(event: events.WorkersEntered, local: NodeState, now: float) -> NodeState:
    if local.resting is None:
        return local
    before = local.resting.workers
    workers = Workers(
        event.round,
        event.number,
        event.first_rank,
        event.epoch,
        now,
        before.alive,
        resumed=event.resumed,
        home=before.names_after,
        can_rest=True,
        listening=before.listening,
        awaited=locals_of(before),
        answer_by=now + PRESENT_WITHIN,
    )
    return _in_round(replace(local, resting=None), workers)


def _in_round(local: NodeState, workers: Workers) -> NodeState:
    local = _agreement(replace(local, workers=workers), vote=None)
    return _reports(local, step=workers.resumed)


@after.register
def _(event: events.RestOver, local: NodeState, now: float) -> NodeState:
    if local.resting is None:
        return local
    workers = replace(local.resting.workers, killed=True, gone_by=now + GONE_WITHIN)
    return replace(local, workers=workers, resting=None)


@after.register
def _(event: events.Exited, local: NodeState, now: float) -> NodeState:
    opened, resting = local.store.round_store, local.resting
    if opened is not None and opened.id == event.id:
        return _store(local, round_store=replace(opened, dead=True))
    if event.id == local.store.spare:
        return _store(local, spare="", spare_at=now + SPARE_AGAIN)
    if resting is not None and event.id in resting.workers.alive:
        # The others are of no use without it.
        local = replace(local, workers=resting.workers, resting=None)
    if local.workers is None:
        return local
    return replace(local, workers=changed(event, local.workers, now))


@after.register
def _(event: events.RestRequested, local: NodeState, now: float) -> NodeState:
    if local.workers is None:
        return local
    return replace(local, workers=asked_to_rest(local.workers, local.reports.step_time, now))


@after.register
def _(event: WorkersEvent, local: NodeState, now: float) -> NodeState:
    """Change the workers, if there are any: what is told of them may come after their end."""
    if local.resting is not None and isinstance(event, events.WorkerDeaf):
        workers = changed(event, local.resting.workers, now)
        return replace(local, resting=RestingWorkers(workers, local.resting.promised))
    if local.workers is None:
        return local
    return replace(local, workers=changed(event, local.workers, now))


@after.register
def _(event: events.RoundEnded, local: NodeState, now: float) -> NodeState:
    resting = RestingWorkers(local.workers) if event.rests and local.workers is not None else None
    local = _agreement(replace(local, workers=None, resting=resting), vote=None)
    return local if event.end is None else _agreement(local, end=event.end)


# -- daemon, round store and storage --------------------------------------------------------------


@after.register
def _(event: events.DaemonStarted, local: NodeState, now: float) -> NodeState:
    """Tell a new daemon when this node will be gone: it does not know."""
    return _departure(_store(local, daemon=event.address), hurried=math.inf)


@after.register
def _(event: messages.Closed, local: NodeState, now: float) -> NodeState:
    return _store(local, daemon="")


@after.register
def _(event: events.DaemonRefused, local: NodeState, now: float) -> NodeState:
    again = event.retry_at
    return _retries(_said(local, event.topic), write_at=again, ask_at=again)


@after.register
def _(event: events.StoreOpened, local: NodeState, now: float) -> NodeState:
    used = event.store.id == local.store.spare
    return _store(local, round_store=event.store, spare="" if used else local.store.spare)


@after.register
def _(event: events.SpareStoreStarted, local: NodeState, now: float) -> NodeState:
    again = math.inf if event.never else 0.0 if event.id else now + SPARE_AGAIN
    return _store(local, spare=event.id, spare_at=again)


@after.register
def _(event: events.StoreServes, local: NodeState, now: float) -> NodeState:
    opened = local.store.round_store
    return _store(local, round_store=replace(opened, serves=True)) if opened is not None else local


@after.register
def _(event: events.StoreClosed, local: NodeState, now: float) -> NodeState:
    return _store(local, round_store=None)


@after.register
def _(event: events.ClaimStarted, local: NodeState, now: float) -> NodeState:
    return _store(local, claim=StorageClaim(event.round, now, event.pending))


@after.register
def _(event: events.Claimed, local: NodeState, now: float) -> NodeState:
    if event.commit is not None:
        local = _committed(local, event.commit)
    claim = local.store.claim
    if claim is None or claim.round != event.round:
        return local
    owned = event.error if event.owned else ""
    claim = replace(claim, pending=False, epoch=event.epoch, run_id=event.run_id, owned=owned)
    return _store(local, claim=claim)


@after.register
def _(event: messages.Superseded, local: NodeState, now: float) -> NodeState:
    return _store(local, outrun=max(event.epoch, local.store.outrun))


@after.register
def _(event: messages.Committed, local: NodeState, now: float) -> NodeState:
    return _committed(local, Commit(event.epoch, event.step))


@after.register
def _(event: messages.FilesTold, local: NodeState, now: float) -> NodeState:
    return local  # it is recorded for people, and decides nothing


@after.register
def _(event: messages.Rehearsed, local: NodeState, now: float) -> NodeState:
    if (event.kind, event.outcome) != (AUDITED, SICK):
        return local  # it is recorded for people, and decides nothing
    return after(events.XidSeen(GpuFault(event.message, "audit", "audit"), SICK), local, now)


def _committed(local: NodeState, commit: Commit) -> NodeState:
    return _store(local, commit=max(commit, local.store.commit or commit))


@after.register
def _(event: events.FlushStarted, local: NodeState, now: float) -> NodeState:
    return _store(local, flushing=event.round)


@after.register
def _(event: events.Flushed, local: NodeState, now: float) -> NodeState:
    departure = local.departure
    local = _store(local, flushed=event.round)
    return _departure(local, left=departure.left or local.departs)


# -- agreement ------------------------------------------------------------------------------------


@after.register
def _(event: events.Acknowledged, local: NodeState, now: float) -> NodeState:
    acknowledged, resting = (event.round, event.phase, event.epoch), local.resting
    if resting is not None and event.rests:
        promised = resting.promised | {event.round}
        local = replace(local, resting=RestingWorkers(resting.workers, promised))
    local = _agreement(local, acknowledged=acknowledged, kept=event.round if event.rests else "")
    return _reports(local, said=local.reports.said - {BLIND})


@after.register
def _(event: events.SlotsOffered, local: NodeState, now: float) -> NodeState:
    return _agreement(local, offered=event.round)


@after.register
def _(event: events.Voted, local: NodeState, now: float) -> NodeState:
    return _agreement(local, vote=event.vote)


@after.register
def _(event: events.WorkersReleased, local: NodeState, now: float) -> NodeState:
    return _agreement(local, vote=None)


# -- reports --------------------------------------------------------------------------------------


@after.register
def _(event: messages.Points, local: NodeState, now: float) -> NodeState:
    points = (Point(each.step, each.loss, each.at) for each in event.points)
    kept = (*local.reports.points, *points)[-POINTS_KEPT:]
    step = event.points[-1].step if event.points else local.reports.step
    bad, at = local.reports.not_finite, local.reports.not_finite_at
    for point in event.points:
        if point.loss is not None and math.isfinite(point.loss):
            bad, at = 0, 0.0
        elif point.loss is not None and not bad:
            bad, at = point.step, point.at
    return _reports(local, points=kept, step=step, not_finite=bad, not_finite_at=at)


@after.register
def _(event: events.ProgressReported, local: NodeState, now: float) -> NodeState:
    local = _store(local, commit=event.commit)
    return _reports(
        local,
        points=(),
        step=event.step,
        told_at=now,
        told_step=event.step,
        step_time=event.step_time,
        told_commit=event.commit,
    )


@after.register
def _(event: events.FinishReported, local: NodeState, now: float) -> NodeState:
    return _reports(local, finished=event.round, finished_at=now)


@after.register
def _(event: events.Said, local: NodeState, now: float) -> NodeState:
    return _said(local, event.topic)


def noticed(departure: NodeDeparture, notice: Notice, now: float) -> NodeDeparture:
    """Record a notice.

    The first one counts, unless a later one leaves less time; one that does not drain is only a
    hint. What lies ahead waits until its time has come.
    """
    others = tuple(
        each for each in departure.scheduled if (each.kind, each.id) != (notice.kind, notice.id)
    )
    told = (*departure.untold, notice)
    if notice.called_off or notice.is_ahead(now):
        scheduled = others if notice.called_off else (*others, notice)
        return replace(departure, scheduled=scheduled, untold=told)
    departure = replace(departure, scheduled=others)
    current = departure.notice
    if current is not None and not notice.kind.traits.drains:
        return departure if current.kind.traits.drains else replace(departure, untold=told)
    if current is not None and current.kind.traits.drains and not _is_sooner(notice, current):
        return departure
    return replace(departure, notice=notice, drained=False)


def _is_sooner(notice: Notice, current: Notice) -> bool:
    if notice.deadline is None:
        return False
    return current.deadline is None or notice.deadline < current.deadline - 0.5
