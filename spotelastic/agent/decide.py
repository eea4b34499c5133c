"""Pure: what a node's agent does next. `act.py` performs it; `observe.py` is what it knows.

Level-triggered: every call compares what should be with what is, so that it does not matter which
event came first or whether one was missed. Must never happen:

- a worker trains in a round that is not the current one: whatever else is wrong, workers of
  another round are killed first, and that needs no store;
- a node is admitted while it is not able to start at once: it registers only when its zygote is
  warm and its daemon answers;
- a node says ready while an old worker lives: readiness waits until all are reaped;
- a node confirms a save step that one of its workers might have passed (`Vote.confirmed`, set by
  `act.py` only from steps read after the target was written);
- a node that cannot end its workers holds up the others: it leaves.
"""

import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spotelastic.agent.actions import (
    Acknowledge,
    Action,
    AdoptEpoch,
    Aim,
    AnswerSteps,
    Campaign,
    ClaimStorage,
    CloseStore,
    DumpStacks,
    EndRound,
    Exit,
    Flush,
    KillWorkers,
    Lead,
    LookAtSteps,
    OfferSlots,
    OpenStore,
    Refuse,
    Register,
    Release,
    ReportFailure,
    ReportFinished,
    ReportStall,
    ReportStoreDeath,
    Say,
    StartDaemon,
    StartWorkers,
    StartZygote,
    TellProgress,
    TellRestart,
    VoteSealed,
    WriteDrain,
)
from spotelastic.agent.observe import GONE_WITHIN, Local, Workers
from spotelastic.model.agreement import Proposal
from spotelastic.model.job import ENDED
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous import proposed, rounds
from spotelastic.rendezvous.view import Seen

CLAIM_PATIENCE = 2.0
"""Seconds that a round waits for its storage epoch before it starts without commits."""
CLAIM_RETRY = 5.0
ATTACH_PATIENCE = 10.0
"""Seconds after which a script without a Checkpointer is no longer asked to agree on a step."""
_PLAIN = (
    "the script uses no spotelastic.Checkpointer: each new round starts it again, from what it has"
    " saved itself"
)
TELL_EVERY = 1.0
"""Seconds between publications of progress in rounds of up to `TELLERS` nodes; in larger ones more,
so that the store has no more to do."""
TELLERS = 64
ASK_EVERY = 5.0
"""Seconds without progress after which a daemon is asked: one that froze would go unnoticed."""
STALL_LOOKS = 4
"""So many looks within the stall time, and all of them must find the same steps."""
DUMP_WITHIN = 1.0
"""Seconds that workers have to write their stacks, which takes a moment, before they are killed."""
STUCK = 2
"""Exit code of a node that cannot end its workers."""
RESTARTED = "restart"
"""Topic of what is said before."""
RESTART = 75
"""Exit code of an agent that is to be started again: it has another job to read (EX_TEMPFAIL)."""


@dataclass(frozen=True, slots=True)
class Decision:
    actions: tuple[Action, ...] = ()
    wake_at: float = math.inf
    """When to look again if nothing happens."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Yielded among actions: look again at this time."""

    at: float


def decide(local: Local, seen: Seen, now: float, new_id: Callable[[], str]) -> Decision:
    """The next actions of this node, in order. What needs no store comes first."""
    actions: list[Action] = []
    wake_at = math.inf
    can_write = now >= local.write_at and seen.healthy
    for step in _steps(local, seen, now, new_id):
        if isinstance(step, Wake):
            wake_at = min(wake_at, step.at)
        elif can_write or isinstance(step, _NEEDS_NO_STORE):
            actions.append(step)
            if isinstance(step, Exit):
                break
        elif seen.healthy:
            wake_at = min(wake_at, local.write_at)
    return Decision(tuple(actions), wake_at)


_NEEDS_NO_STORE = (
    StartZygote,
    StartDaemon,
    KillWorkers,
    DumpStacks,
    LookAtSteps,
    EndRound,
    OpenStore,
    CloseStore,
    ClaimStorage,
    StartWorkers,
    AdoptEpoch,
    Flush,
    Release,
    Say,
    Exit,
)


def _steps(
    local: Local, seen: Seen, now: float, new_id: Callable[[], str]
) -> Iterator[Action | Wake]:
    yield from _grace(local, now)
    yield from _stuck(local, now)
    job = seen.job
    if job is not None and job.state in ENDED:
        yield from _end(local, 0 if job.state == "succeeded" else 1)
        return
    if local.leaving:
        yield from _leave(local, seen, now)
    if not local.zygote:
        yield StartZygote()
    if not local.daemon:
        yield StartDaemon()
    yield from _workers_of_another_round(local, seen, now)
    if _is_outdated(local, seen) and local.workers is None:
        yield from _restart(local)
        return
    yield from _belong(local, seen)
    yield from _hold(local, seen, now, new_id)
    if local.notice is not None and not local.drained and local.registered:
        yield WriteDrain()
    round_ = seen.round
    if round_ is not None and local.node is not None and local.daemon:
        member = round_.member(local.node.id)
        if member is None or member.incarnation != local.node.incarnation:
            yield from _left_out(local, round_)
        elif round_.phase == "proposed":
            yield from _get_ready(local, round_, member, now)
        else:
            yield from _train(local, seen, round_, member, now)
    yield from _tell(local, now, len(round_.members) if round_ is not None else 0)


def _is_outdated(local: Local, seen: Seen) -> bool:
    """Whether the job's code is not what this agent was started with."""
    mine = local.fingerprint.code if local.fingerprint is not None else ""
    wanted = seen.settings.code if seen.settings is not None else ""
    return bool(mine and wanted) and mine != wanted


def _restart(local: Local) -> Iterator[Action | Wake]:
    """Its state is sealed, and its daemon goes on serving it."""
    if RESTARTED not in local.said:
        yield TellRestart()
    else:
        yield Exit(RESTART, "the code has changed: this node starts again with it")


# -- being part of the run ------------------------------------------------------------------------


def _belong(local: Local, seen: Seen) -> Iterator[Action | Wake]:
    """A new lease takes the node back where it was; a missed proposal makes it a newcomer, and a
    node that is asked to leave becomes neither a first nor a second time a new one."""
    if not local.zygote or not local.daemon:
        return
    missed = (
        local.node is not None
        and seen.round is not None
        and local.node.incarnation in seen.round.missed
    )
    if missed or local.node is None:
        if local.fingerprint is not None and not local.leaving:
            yield Register(anew=True)
    elif not local.registered:
        yield Register()


def _hold(
    local: Local, seen: Seen, now: float, new_id: Callable[[], str]
) -> Iterator[Action | Wake]:
    """Whoever holds the election key decides for all; anybody may."""
    if not local.registered or seen.settings is None:
        return
    if local.leadership is None:
        if not seen.holder:
            yield Campaign()
        return
    if not local.nodes_seen:
        return
    if seen.revision < local.lead_after and now < local.lead_at:
        yield Wake(local.lead_at)
        return
    decision = rounds.decide(seen, now, new_id)
    if decision.wake_at is not None:
        yield Wake(decision.wake_at)
    if decision.actions:
        yield Lead(decision.actions)


def _end(local: Local, code: int) -> Iterator[Action | Wake]:
    workers = local.workers
    if workers is not None and workers.alive:
        if not workers.killed:
            yield KillWorkers(signal.SIGKILL if code else signal.SIGTERM)
        return
    yield Exit(code)


def _leave(local: Local, seen: Seen, now: float) -> Iterator[Action | Wake]:
    """Asked to end: the others agree on a save and go on without this node; then it ends.

    When they do not within the time given, or nobody can be asked, the workers just end.
    """
    workers, round_ = local.workers, seen.round
    if workers is not None and workers.alive:
        late = local.notice.deadline if local.notice is not None else None
        if (late is None or now >= late) and not workers.killed:
            yield KillWorkers(signal.SIGTERM)
        elif late is not None and now < late:
            yield Wake(late)
        return
    in_round = (
        round_ is not None
        and local.registered
        and local.node is not None
        and round_.member(local.node.id) is not None
    )
    if in_round and workers is not None and not workers.killed:
        return
    serves_until = _serves_until(local, seen)
    if now < serves_until:
        yield Wake(serves_until)
        return
    flush = f"leave-{local.node.incarnation}" if local.node is not None else ""
    if local.left or not flush or not local.daemon:
        if local.step and "left" not in local.said:
            yield Say("left", _farewell(local))
        yield Exit(128 + local.leaving)
    elif local.flushing != flush:
        yield Flush(flush)


def _farewell(local: Local) -> str:
    """Whether what this node has done reached the object store."""
    last = max(local.step, local.end.last_step if local.end is not None else 0)
    if local.commit is None:
        return f"leaves after step {last}; nothing was committed"
    if local.commit.step >= last:
        return f"leaves after step {last}, which is committed"
    return f"leaves after step {last}; the newest commit is step {local.commit.step}"


def _serves_until(local: Local, seen: Seen) -> float:
    """The others may restore from slots that are here alone: until they know of them, and then
    until the time that a node has for leaving."""
    round_, node, notice = seen.round, local.node, local.notice
    if round_ is None or not round_.members or node is None or not local.registered:
        return 0.0
    if local.end is None or notice is None or notice.deadline is None:
        return 0.0
    end = notice.deadline
    if round_.phase == "proposed":
        return min(end, seen.round_at + proposed.OFFER_WITHIN)
    return end if round_.resume.needs(node.id) else 0.0


def _grace(local: Local, now: float) -> Iterator[Action | Wake]:
    workers = local.workers
    if workers is None or not workers.alive or workers.kill_at == math.inf:
        return
    if now >= workers.kill_at:
        yield KillWorkers()
    else:
        yield Wake(workers.kill_at)


def _stuck(local: Local, now: float) -> Iterator[Action | Wake]:
    workers = local.workers
    if workers is None or not workers.alive or workers.gone_by == math.inf:
        return
    if now < workers.gone_by:
        yield Wake(workers.gone_by)
        return
    ranks = sorted(workers.first_rank + int(name.rpartition("/")[2]) for name in workers.alive)
    yield Exit(
        STUCK,
        f"rank {', '.join(map(str, ranks))} cannot be ended: SIGKILL has had no effect for "
        f"{GONE_WITHIN:g} s (stuck in a driver or a file system). This node leaves; restart the "
        "machine before it is used again",
    )


# -- rounds ---------------------------------------------------------------------------------------


def _workers_of_another_round(local: Local, seen: Seen, now: float) -> Iterator[Action | Wake]:
    workers, round_ = local.workers, seen.round
    if workers is None or round_ is None:
        return
    mine = round_.member(local.node.id) if local.node is not None else None
    if workers.round == round_.incarnation and mine is not None:
        return
    if workers.alive and not workers.killed:
        if round_.cause == "stall" and round_.parent == workers.round:
            yield from _dump_and_kill(workers, now)
        else:
            yield KillWorkers()
    elif not workers.alive:
        plain = not workers.attached and now >= workers.started_at + ATTACH_PATIENCE
        if plain and mine is not None and mine.slot == 0 and "plain" not in local.said:
            yield Say("plain", _PLAIN)
        yield EndRound()


def _dump_and_kill(workers: Workers, now: float) -> Iterator[Action | Wake]:
    """Of workers that have stalled, on this node or on another: where they were is worth a look."""
    if not workers.dumped_at:
        yield DumpStacks()
    elif now < workers.dumped_at + DUMP_WITHIN:
        yield Wake(workers.dumped_at + DUMP_WITHIN)
    else:
        yield KillWorkers()


def _left_out(local: Local, round_: Round) -> Iterator[Action | Wake]:
    """Not a member: keep offering what is sealed here, hold no store."""
    if local.workers is None and local.registered and local.offered != round_.incarnation:
        yield OfferSlots(round_.incarnation)
    if local.store is not None:
        yield CloseStore()


def _get_ready(local: Local, round_: Round, member: Member, now: float) -> Iterator[Action | Wake]:
    incarnation = round_.incarnation
    if round_.pause and f"pause {incarnation}" not in local.said:
        yield Say(f"pause {incarnation}", round_.reason)
    if not local.registered:
        return
    takes_time = local.workers is not None or member.slot == 0
    if takes_time and local.acknowledged[0] != incarnation:
        yield Acknowledge(round_, ready=False)
    if local.store is not None and local.store.round != incarnation:
        yield CloseStore()
    if member.slot == 0:
        if local.claim is None or local.claim.round != incarnation:
            yield ClaimStorage(round_)
        if local.store is None:
            yield OpenStore(round_)
    if local.workers is not None or local.acknowledged == (incarnation, "ready", _epoch(local)):
        return
    if member.slot == 0:
        claim, store = local.claim, local.store
        if claim is None or claim.round != incarnation or store is None or store.dead:
            return
        if claim.pending and now < claim.asked_at + CLAIM_PATIENCE:
            yield Wake(claim.asked_at + CLAIM_PATIENCE)
            return
    if local.acknowledged[:2] != (incarnation, "ready") or member.slot == 0:
        yield Acknowledge(round_, ready=True)


def _epoch(local: Local) -> int:
    return local.claim.epoch if local.claim is not None else 0


def _train(
    local: Local, seen: Seen, round_: Round, member: Member, now: float
) -> Iterator[Action | Wake]:
    workers = local.workers
    if workers is None:
        if round_.plain == round_.number and member.slot == 0 and "plain" not in local.said:
            yield Say("plain", _PLAIN)
        if local.zygote and not local.leaving:
            yield StartWorkers(round_, member)
        return
    if workers.round != round_.incarnation:
        return
    if round_.epoch > workers.epoch:
        yield AdoptEpoch(round_, member)
    if member.slot == 0:
        yield from _keep_first(local, round_, workers, now)
    yield from _exits(local, round_, workers)
    yield from _stall(seen, round_, workers, now)
    if local.finished == round_.incarnation and seen.settings is not None and not local.stays:
        yield from _leave_barrier(local, seen.settings.exit_barrier, now)
    proposal = seen.proposal
    if proposal is not None and proposal.round == round_.incarnation:
        patience = 0.0 if round_.plain else ATTACH_PATIENCE
        yield from _agree(local, workers, proposal, now, workers.started_at + patience)


def _keep_first(
    local: Local, round_: Round, workers: Workers, now: float
) -> Iterator[Action | Wake]:
    """The node in slot 0: the round's store, and its storage epoch if it came without one, or if
    the claim of a round that it replaced came through late and has fenced it."""
    store, claim = local.store, local.claim
    if store is not None and store.dead and not workers.failed and not workers.exits:
        yield ReportStoreDeath(round_)
    if round_.epoch in (0, local.outrun) and claim is not None and not claim.pending:
        if claim.epoch > round_.epoch and claim.round == round_.incarnation:
            if local.acknowledged != (round_.incarnation, "ready", claim.epoch):
                yield Acknowledge(round_, ready=True)
        elif now >= claim.asked_at + CLAIM_RETRY:
            yield ClaimStorage(round_)
        else:
            yield Wake(claim.asked_at + CLAIM_RETRY)


def _exits(local: Local, round_: Round, workers: Workers) -> Iterator[Action | Wake]:
    failed = [exit_ for exit_ in workers.exits if exit_.code != 0]
    if failed and not workers.failed:
        if workers.alive and not workers.killed:
            yield KillWorkers()
        yield ReportFailure(round_)
    elif not failed and not workers.alive and not workers.killed:
        if local.flushing != round_.incarnation:
            yield Flush(round_.incarnation)
        elif local.flushed == round_.incarnation and local.finished != round_.incarnation:
            yield TellProgress()  # its last steps and its last commit
            yield ReportFinished(round_)


def _stall(seen: Seen, round_: Round, workers: Workers, now: float) -> Iterator[Action | Wake]:
    """Workers of a script with a Checkpointer that have begun to train, and get no further.

    Needs no store until it is reported: a node that is cut off kills its workers and waits.
    """
    timeout = seen.settings.stall_timeout if seen.settings is not None else 0.0
    if not timeout or not workers.attached or workers.left or workers.exits or workers.failed:
        return
    if workers.dumped_at:
        if not workers.killed:
            yield from _dump_and_kill(workers, now)
        if now >= workers.dumped_at + DUMP_WITHIN:
            yield ReportStall(round_)
        return
    if workers.killed:
        return
    look_at = max(workers.pace.looked_at, workers.started_at) + timeout / STALL_LOOKS
    if workers.pace.unchanged >= STALL_LOOKS:
        yield DumpStacks()
    elif now >= look_at:
        yield LookAtSteps()
    else:
        yield Wake(look_at)


def _leave_barrier(local: Local, timeout: float, now: float) -> Iterator[Action | Wake]:
    """Workers elsewhere may do what takes long, or hang: who has finished does not wait for ever,
    and takes nothing away from them."""
    if now < local.finished_at + timeout:
        yield Wake(local.finished_at + timeout)
        return
    yield Say("barrier", f"finished {timeout:g} s before all others had: leaves them to it")
    yield Exit(0)


def _agree(
    local: Local, workers: Workers, proposal: Proposal, now: float, attached_by: float
) -> Iterator[Action | Wake]:
    vote = local.vote
    mine = vote if vote is not None and vote.proposal == proposal.id else None
    if proposal.cancelled:
        if mine is not None and mine.aimed:
            yield Release(proposal)
        return
    if mine is not None and mine.refused:
        return
    if workers.left or (not workers.attached and now >= attached_by):
        yield Refuse(proposal, plain=not workers.attached)
        return
    if not workers.attached:
        yield Wake(attached_by)
        return
    if proposal.target == 0:
        if mine is None:
            yield AnswerSteps(proposal)
    elif workers.waiting_at == proposal.target:
        if mine is None or mine.sealed != proposal.target:
            yield VoteSealed(proposal)
    elif mine is None or mine.aimed != proposal.target:
        yield Aim(proposal)


# -- telling --------------------------------------------------------------------------------------


def _tell(local: Local, now: float, nodes: int) -> Iterator[Action | Wake]:
    """Progress when there is some; when there is none, ask the daemon whether it lives at all."""
    if not local.registered:
        return
    share = max(1.0, nodes / TELLERS)
    workers = local.workers
    if local.points or local.step != local.told_step or local.commit != local.told_commit:
        due = local.told_at + TELL_EVERY * share
    elif workers is not None and workers.attached:
        due = max(local.told_at, workers.started_at) + ASK_EVERY * share
    else:
        return
    if now >= due:
        yield TellProgress()
    else:
        yield Wake(due)
