"""Decides what a node does for the current round, as a member or left out of it (pure).

Parts of `decide.py`. Must never happen:

- a worker trains in a round that is not the current one: whatever else is wrong, workers of
  another round are killed first, and that needs no etcd;
- a node says ready while an old worker lives: readiness waits until all are reaped;
- a node confirms a save step that one of its workers might have passed (`Vote.confirmed`, set by
  `executor.py` only from steps read after the target was written).
"""

import math

from spotelastic.agent import actions as do
from spotelastic.agent.in_place import duties
from spotelastic.agent.state.node_health import EXAMINED_WITHIN
from spotelastic.agent.state.silence import LOOK_EVERY
from spotelastic.agent.state.values import NodeState, RoundStore, Workers
from spotelastic.model.agreement import Proposal
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.duties import answers
from spotelastic.rendezvous.failures.restarts import FAILURES
from spotelastic.rendezvous.view import RunState

CLAIM_PATIENCE = 2.0
"""Seconds that a round waits for its storage epoch before it starts without one."""
FIRST_CLAIM_PATIENCE = 15.0
"""The same for a round without a parent. No snapshot is part of its history, and etcd knows of no
commit, so that only the storage can tell whether it begins at step 0. Longer than a claim takes to
fail.
"""
CLAIM_RETRY = 5.0
ATTACH_PATIENCE = 10.0
"""Seconds after which a script that has entered no Checkpointer is not asked to agree on a step. It
may be one that starts slowly, so that it is asked at the next change again.
"""
STALL_LOOKS = 4
"""Number of looks within the stall time. All of them must find the same steps."""
DUMP_WITHIN = 1.0
"""Seconds that stalled workers have to write their stacks before they are killed."""
HEIRS = 2
"""Members that keep a spare store: the first one, whose node runs the round's store, and the one
that most likely takes its place.
"""
SETTLED = 1.0
"""Seconds after the beginning of a round in which its nodes have other things to do."""
_PLAIN = (
    "the script has not entered a spotelastic.Checkpointer so far: each new round starts it again"
    " from whatever it has saved itself"
)


def hurry(local: NodeState, seen: RunState) -> do.Steps:
    """Tells the daemon once when this node will be gone, whichever source reported it."""
    drain = seen.drains.get(local.node.id) if local.node is not None else None
    notices = [local.departure.notice, drain.notice if drain is not None else None]
    ends = [
        n.deadline for n in notices if n is not None and n.kind.traits.has_deadline and n.deadline
    ]
    end = min(ends, default=math.inf)
    if local.store.daemon and end < local.departure.hurried - 0.5:
        yield do.UploadByDeadline(end)


def end_others(local: NodeState, seen: RunState, now: float) -> do.Steps:
    """End workers of another round than the current one, or of one that this node is not in."""
    workers, round_ = local.workers, seen.round
    if workers is None or round_ is None:
        return
    mine = round_.member(local.node.id) if local.node is not None else None
    if not workers.round:
        yield from duties.look_after_prepared(local, seen, now)
        return
    if workers.round == round_.incarnation and mine is not None:
        return
    ended = workers.fails_untold or (workers.ended_early and round_.cause in FAILURES)
    if ended and round_.parent == workers.round:
        yield do.ReportFailure(round_)  # its peers' failures were told first, and may be its doing
    if round_.cause in ("worker", "stall") and round_.parent == workers.round:
        # The peers of a worker whose GPU is sick may tell of their failures before its own is seen.
        yield from _examine(local, workers.round)
    if workers.alive and not workers.killed:
        stalled = round_.cause == "stall" and round_.parent == workers.round
        if stalled and not workers.all_rest and not _has_dumped(workers, now):
            yield from _dump(workers)
        elif duties.may_rest(local, round_, mine) and (workers.all_rest or now < workers.rest_by):
            yield from duties.rest(workers)
        else:
            yield do.KillWorkers(but_failing=round_.cause in FAILURES and not stalled)
    elif workers.alive & workers.failing and round_.cause not in FAILURES:
        yield do.KillWorkers()  # their failure is no longer what matters
    elif not workers.alive:
        plain = not workers.attached and now >= workers.started_at + ATTACH_PATIENCE
        if plain and mine is not None and mine.slot == 0 and "plain" not in local.reports.said:
            yield do.Say("plain", _PLAIN)
        yield do.EndRound()


def _has_dumped(workers: Workers, now: float) -> bool:
    return bool(workers.dumped_at) and now >= workers.dumped_at + DUMP_WITHIN


def _dump(workers: Workers) -> do.Steps:
    """Has stalled workers write their stacks, on this node and on others."""
    asked_at = workers.dumped_at
    yield do.Wake(asked_at + DUMP_WITHIN) if asked_at else do.DumpStacks()


def left_out(local: NodeState, round_: Round) -> do.Steps:
    """Duties of a node outside the round: it offers its snapshots, and runs no round store."""
    incarnation = round_.incarnation
    offered = local.agreement.offered == incarnation
    of_a_round = local.workers is not None and local.workers.round != ""
    if not of_a_round and local.membership.registered and not offered:
        yield do.OfferSlots(incarnation)
    if local.store.round_store is not None:
        yield do.CloseStore()


def get_ready(
    local: NodeState, seen: RunState, round_: Round, member: Member, now: float
) -> do.Steps:
    """Duties of a member of a proposed round.

    It says that it has seen the round, then that it can start.
    """
    incarnation = round_.incarnation
    if round_.pause and f"pause {incarnation}" not in local.reports.said:
        yield do.Say(f"pause {incarnation}", round_.reason)
    if not local.membership.registered:
        return
    claim, store = local.store.claim, local.store.round_store
    acknowledged = local.agreement.acknowledged
    told = acknowledged[:2]
    at_once = local.workers is None and member.slot != 0
    if not at_once and answers.phase_due(told, round_, can_start=False):
        due = seen.round_at + answers.seen_after(seen.settings, round_, member)
        yield do.Acknowledge(round_, ready=False) if now >= due else do.Wake(due)
    died = store is not None and store.dead and told != (incarnation, "ready")
    if store is not None and member.slot == 0 and _never_started(store, round_):
        yield do.KeepStore(round_)
    elif store is not None and (died or store.round != incarnation):
        yield do.CloseStore()
        store = None
    if member.slot == 0:
        if claim is None or claim.round != incarnation:
            yield do.ClaimStorage(round_)
        if store is None:
            yield do.OpenStore(round_)
    epoch = claim.epoch if claim is not None else 0
    if local.workers is not None or acknowledged == (incarnation, "ready", epoch):
        return
    yield from _say_ready(local, round_, member, now)


def _never_started(store: RoundStore, round_: Round) -> bool:
    """Whether a store was opened for a proposal that this round replaces.

    No worker has heard of it: they are told when a round starts, and then the next one has another
    number.
    """
    same = store.number == round_.number
    return same and not store.dead and store.round != round_.incarnation


def _say_ready(local: NodeState, round_: Round, member: Member, now: float) -> do.Steps:
    """Says that this node can start, once nothing of it is to be waited for."""
    claim, store = local.store.claim, local.store.round_store
    if local.health.examines(now):  # a failure of a sick GPU is not charged: no round starts before
        yield do.Wake(local.health.examining_at + EXAMINED_WITHIN)
        return
    if member.slot == 0:
        if claim is None or claim.round != round_.incarnation or store is None or store.dead:
            return
        patience = CLAIM_PATIENCE if round_.parent else FIRST_CLAIM_PATIENCE
        if local.resting is not None:  # there is a state in memory, and the epoch may come later
            patience = 0.0
        if claim.pending and now < claim.asked_at + patience:
            yield do.Wake(claim.asked_at + patience)
            return
        if claim.owned and not round_.parent:  # one that has trained goes on, and says so
            yield do.FailJob(claim.owned)
            return
    told = local.agreement.acknowledged[:2]
    # The first node answers again when it has claimed the storage after all.
    if answers.phase_due(told, round_, can_start=True) or member.slot == 0:
        yield do.Acknowledge(round_, ready=True)


def train(local: NodeState, seen: RunState, round_: Round, member: Member, now: float) -> do.Steps:
    """Duties of a member of a round that has started."""
    workers = local.workers
    if workers is None:
        if round_.plain == round_.number and member.slot == 0 and "plain" not in local.reports.said:
            yield do.Say("plain", _PLAIN)
        opened = local.store.round_store
        if member.slot == 0 and opened is not None and not opened.serves:
            yield do.ServeStore()
        yield from duties.take_up(local, round_, member)
        return
    if workers.round != round_.incarnation:
        return
    if round_.epoch > workers.epoch:
        yield do.AdoptEpoch(round_, member)
    if member.slot == 0:
        yield from _keep_first(local, round_, workers, now)
    if member.slot < HEIRS:
        yield from _keep_spare(local, workers, now)
    yield from _exits(local, round_, workers)
    yield from duties.await_entry(local, round_, workers, now)
    yield from _stall(local, seen, round_, workers, now)
    yield from _silence(round_, workers, now)
    finished = local.reports.finished == round_.incarnation
    if finished and seen.settings is not None and not local.departure.stays:
        yield from _leave_barrier(local, seen.settings.exit_barrier, now)
    proposal = seen.proposal
    if proposal is not None and proposal.round == round_.incarnation:
        patience = 0.0 if round_.plain else ATTACH_PATIENCE
        yield from _agree(local, workers, proposal, now, workers.started_at + patience)


def _keep_first(local: NodeState, round_: Round, workers: Workers, now: float) -> do.Steps:
    """Duties of the node with group rank 0: the round store, and a missing or fenced storage epoch.

    The epoch is missing if the claim was not answered in time. It is fenced if the claim of a round
    that this one replaced came through late.
    """
    store, claim = local.store.round_store, local.store.claim
    if store is not None and store.dead and not workers.failed and not workers.exits:
        yield do.ReportStoreDeath(round_)
    if round_.epoch in (0, local.store.outrun) and claim is not None and not claim.pending:
        if claim.epoch > round_.epoch and claim.round == round_.incarnation:
            if local.agreement.acknowledged != (round_.incarnation, "ready", claim.epoch):
                yield do.Acknowledge(round_, ready=True)
        else:
            due = claim.asked_at + CLAIM_RETRY
            yield do.ClaimStorage(round_) if now >= due else do.Wake(due)


def _keep_spare(local: NodeState, workers: Workers, now: float) -> do.Steps:
    """Keep a store ready for the next round, which would wait for the start of one."""
    if local.store.spare or workers.exits or workers.failed or workers.killed or local.departs:
        return
    due = max(workers.started_at + SETTLED, local.store.spare_at)
    yield do.StartSpareStore() if now >= due else do.Wake(due)


def _exits(local: NodeState, round_: Round, workers: Workers) -> do.Steps:
    failed = [exit_ for exit_ in workers.exits if exit_.code != 0]
    if workers.broken and not failed and not workers.killed:
        if workers.rest_by == math.inf and not workers.all_rest:
            yield do.RestWorkers()
        yield from _examine(local, round_.incarnation)
        if not workers.failed:
            yield do.ReportFailure(round_)
        return
    if workers.fails_untold:
        if workers.alive and not workers.killed:
            yield do.KillWorkers(but_failing=True)
        yield from _examine(local, round_.incarnation)
        yield do.ReportFailure(round_)
    elif not failed and not workers.alive and not workers.killed:
        incarnation, finished = round_.incarnation, local.reports.finished
        if local.store.flushing != incarnation:
            yield do.FlushUploads(incarnation)
        elif local.store.flushed == incarnation != finished:
            yield do.TellProgress()  # its last steps and its last commit
            yield do.ReportFinished(round_)


def _examine(local: NodeState, incarnation: str) -> do.Steps:
    """Has the GPUs looked at, once for each round that fails."""
    if local.health.gpus and local.health.examined != incarnation:
        yield do.ExamineGpus(incarnation)


def _stall(
    local: NodeState, seen: RunState, round_: Round, workers: Workers, now: float
) -> do.Steps:
    """End workers that use a Checkpointer, have begun to train, and make no progress.

    Needs no etcd until the stall is reported: a node that is cut off kills its workers and waits.
    """
    timeout = seen.settings.stall_timeout if seen.settings is not None else 0.0
    if not timeout or not workers.attached or workers.left or workers.exits or workers.failed:
        return
    if workers.dumped_at:
        if not _has_dumped(workers, now):
            yield from _dump(workers)
            return
        if workers.killed:
            pass
        elif len(workers.listening) < len(workers.alive):  # the others are woken by their end
            yield do.KillWorkers()
        elif workers.rest_by == math.inf:
            yield do.RestWorkers()
        yield from _examine(local, round_.incarnation)
        yield do.ReportStall(round_)
        return
    if workers.killed:
        return
    look_at = max(workers.pace.looked_at, workers.started_at) + timeout / STALL_LOOKS
    if workers.pace.unchanged >= STALL_LOOKS:
        yield do.DumpStacks()
    else:
        yield do.LookAtSteps() if now >= look_at else do.Wake(look_at)


def _silence(round_: Round, workers: Workers, now: float) -> do.Steps:
    """Report where the workers stand after a long time without a step. They go on.

    A script that has not entered a Checkpointer may never do so; that is reported once.
    """
    silence = workers.silence
    if workers.exits or workers.failed or workers.killed or workers.left or round_.plain:
        return
    if silence.told and not workers.attached:
        return
    due = silence.due(workers.started_at)
    look_at = min(due, max(silence.looked_at, workers.started_at) + LOOK_EVERY)
    if silence.asked_at:
        answered = silence.asked_at + DUMP_WITHIN
        yield do.TellSilence() if now >= answered else do.Wake(answered)
    elif silence.looked_at >= due:
        yield do.AskWhere()
    else:
        yield do.Listen() if now >= look_at else do.Wake(look_at)


def _leave_barrier(local: NodeState, timeout: float, now: float) -> do.Steps:
    """Leaves after the exit barrier's time-out.

    The workers of other nodes may take long, or hang.
    """
    if now < local.reports.finished_at + timeout:
        yield do.Wake(local.reports.finished_at + timeout)
        return
    line = f"finished, and has waited {timeout:g} s for the others: leaves without them"
    yield do.Say("barrier", line)
    yield do.Exit(0)


def _agree(
    local: NodeState, workers: Workers, proposal: Proposal, now: float, attached_by: float
) -> do.Steps:
    vote = local.agreement.vote
    mine = vote if vote is not None and vote.proposal == proposal.id else None
    if proposal.cancelled:
        if mine is not None and mine.aimed:
            yield do.ReleaseWorkers(proposal)
        return
    if mine is not None and mine.refused:
        return
    if workers.left or (not workers.attached and now >= attached_by):
        yield do.Refuse(proposal, plain=not workers.attached)
        return
    if not workers.attached:
        yield do.Wake(attached_by)
        return
    if proposal.target == 0:
        if mine is None:
            yield do.AnswerSteps(proposal)
    elif workers.waiting_at == proposal.target:
        if mine is None or mine.sealed != proposal.target:
            yield do.AnswerSteps(proposal, sealed=True)
    elif mine is None or mine.aimed != proposal.target:
        yield do.SetSaveTarget(proposal)
