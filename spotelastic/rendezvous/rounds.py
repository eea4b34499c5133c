"""Decides what the holder does next about the round (pure); `membership.py` writes it to etcd.

Must never happen, and what prevents it here:

- two current rounds: one key, written under the holder's election key and the key's revision;
- more than max or, once started, fewer than min nodes: `place` limits, `proposed.py` starts none;
- a round that waits for a node that is gone: each phase has a deadline per member;
- a restart charged to the user's code for a lost node: `rules.uncharge`;
- a planned change that loses a step: it waits for the agreement (`agreement.py`) to be sealed;
- a round that began at step 0 hides later commits which were unknown then: `_later_commit` ends it.

The current round is *proposed* (members and slots), then *started* (store, resume source) once all
members are ready (`proposed.py`). Everything is recomputed from what is seen, so a new holder goes
on where the old one ended.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from spotelastic_checkpoints.types import Commit

from spotelastic.model.counting import counted
from spotelastic.model.job import ENDED, Failure, Job, Settings
from spotelastic.model.round import Acknowledgement, Cause, Member, Past, Round, Streak
from spotelastic.rendezvous import agreement, intervals, rules, stopping
from spotelastic.rendezvous.decision import (
    Action,
    CloseRound,
    CompleteHistory,
    EndJob,
    Moment,
    RoundDecision,
    WriteProposal,
    WriteRound,
)
from spotelastic.rendezvous.failures import blame, restarts
from spotelastic.rendezvous.proposed import gather
from spotelastic.rendezvous.sources import in_place
from spotelastic.rendezvous.view import LiveNode, RunState


def decide(seen: RunState, now: float, new_id: Callable[[], str]) -> RoundDecision:
    """Return the next decision about the run.

    `new_id` returns a fresh name for what is created.
    """
    if seen.settings is None:
        return RoundDecision(reason="waits for the job's settings")
    if seen.job is not None and seen.job.state in ENDED:
        return RoundDecision(reason=f"the job has {seen.job.state}")
    at = Moment(seen, seen.settings, now, new_id)
    round_ = seen.round
    if seen.ending is not None and stopping.at_once(at):
        return stopping.end(at, seen.ending)
    if round_ is None or round_.phase == "over":
        return _first(at, round_)
    if round_.phase == "proposed":
        return gather(at, round_)
    return _watch_over(at, round_)


# -- no round yet ---------------------------------------------------------------------------------


def _first(at: Moment, over: Round | None) -> RoundDecision:
    """Proposes a job's first round, or the first after the round that the job had ended with."""
    eligible = rules.eligible_nodes(at, None)
    if len(eligible) < at.settings.min_nodes:
        return RoundDecision(reason=f"waits for nodes: {len(eligible)} of {at.settings.min_nodes}")
    quiet_at = _quiet_at(eligible.values(), at.settings)
    if len(eligible) < at.settings.max_nodes and at.now < quiet_at:
        return RoundDecision(reason="waits briefly for more nodes", wake_at=quiet_at)
    members = rules.members_of(at, (), eligible)
    incarnation = at.new_id()
    first = Round(
        number=1 if over is None else over.number + 1,
        incarnation=incarnation,
        phase="proposed",
        members=members,
        cause="start",
        reason=f"first round of {counted(len(members), 'node')}",
        proposed_at=at.now,
        schedule=intervals.first(at.settings),
        past=Past() if over is None else over.past,
        code=at.settings.code,
        run_id=(over.run_id if over is not None else "") or incarnation,
    )
    return RoundDecision((WriteRound(first),), first.reason)


# -- started --------------------------------------------------------------------------------------


def _watch_over(at: Moment, round_: Round) -> RoundDecision:
    # The first node may have claimed an epoch since the round started.
    ack = rules.ack_of(at.seen, round_, round_.members[0].node)
    claim = ack if ack is not None and ack.epoch > round_.epoch else None
    later = _later_commit(at.seen, round_, claim) if claim is not None else None
    if claim is not None and later is None:
        claimed = replace(round_, epoch=claim.epoch, run_id=claim.run_id or round_.run_id)
        return RoundDecision((WriteRound(claimed),), f"storage epoch {claimed.epoch} claimed")
    if not round_.rests and any(each.rests for each in intervals.told(at.seen, round_)):
        known = replace(round_, rests=True)
        return RoundDecision((WriteRound(known),), "its workers can outlive it")
    done: set[str] = set()
    if at.seen.finished:
        of = f"{round_.incarnation}/"
        done = {m.node for m in round_.members if of + m.node in at.seen.finished}
    if len(done) == len(round_.members):
        return _succeed(at, round_)
    unplanned = _unplanned(at, round_, done)
    if unplanned is not None:
        return unplanned
    if later is not None:
        return _change(at, round_, "commit", ())
    if done:
        return RoundDecision(reason=f"{len(done)} of {len(round_.members)} nodes have finished")
    if at.seen.ending is not None:
        return stopping.save(at, round_, at.seen.ending)
    return _planned(at, round_)


def _unplanned(at: Moment, round_: Round, done: set[str]) -> RoundDecision | None:
    """Handle a lost node or a failed worker.

    The next round begins at once, with the nodes that are live.
    """
    absent = [m.node for m in round_.members if not _is_here(at.seen, m)]
    ill = rules.ill_members(at.seen, round_)
    lost = tuple(sorted({*absent, *ill} - done))
    silent = any(node in absent and node not in at.seen.nodes for node in lost)
    if silent and (away := rules.store_was_away(at)):
        return away
    failures = [f for f in at.seen.failures.values() if f.round == round_.incarnation]
    if not lost and (gone := _vanished(at, round_, done)):
        return _change(at, _given_up(at, round_, gone), "loss", gone)
    left = sorted(done & set(absent))
    alone = bool(left and (lost or failures))
    if alone and len(rules.eligible_nodes(at, round_)) < at.settings.min_nodes:
        return _fail_behind(at, lost or sorted({f.node for f in failures}), left, failures)
    if lost:
        drained = all(name in at.seen.drains for name in lost)
        if at.settings.gang and not drained:
            return rules.fail_gang(at, lost)
        settles_at = agreement.settles_at(at.seen, round_, lost) if drained and not ill else 0.0
        if at.now < settles_at and not failures:
            return RoundDecision(
                reason="waiting for the remaining nodes to finish saving", wake_at=settles_at
            )
        ended = rules.uncharge(at, round_, ill=bool(ill))
        return _change(at, ended, "drain" if drained else "loss", lost)
    if failures:
        return _failed(at, round_, failures)
    return None


def _failed(at: Moment, round_: Round, failures: Iterable[Failure]) -> RoundDecision:
    first = blame.first(failures)
    assert first is not None
    lost_peer = blame.is_symptom(first) and round_.world_size > 1
    trained = _has_trained(at, round_, first)
    lived = at.now - at.seen.round_at if trained else 0.0
    streak = restarts.after(round_.streak, None if lost_peer else first, lived)
    ended = replace(round_, streak=streak)
    stepped = trained or round_.trained
    if restarts.is_final(first) or (
        not stepped and restarts.cannot_pass(first, streak, len(round_.members))
    ):
        again = "it would fail the same way at each start"
        if streak.alike > 1:
            again = f"it came {counted(streak.alike, 'time')} in a row before the first step"
        why = f"{first.message.splitlines()[0]}: {again}"
        return RoundDecision((EndJob(Job("failed", at.now, why, failure=first)),), why)
    if first.rank < 0:
        return _change(at, ended, "store", (first.node,))
    ended = replace(ended, charged=(*ended.charged, at.now))
    cause: Cause = "stall" if first.stalled else "worker"
    # Who has failed may be told a moment later: the round names it when it starts.
    return _change(at, ended, cause, () if lost_peer else (first.node,))


def _vanished(at: Moment, round_: Round, done: set[str]) -> tuple[str, ...]:
    """Return members that are gone although their leases are not, if the others are enough."""
    gone = tuple(name for name in in_place.vanished(at.seen, round_) if name not in done)
    rest = rules.eligible_nodes(at, round_).keys() - set(gone) if gone else set()
    return gone if len(rest) >= at.settings.min_nodes and not at.settings.gang else ()


def _given_up(at: Moment, round_: Round, gone: Iterable[str]) -> Round:
    """Return the round without these members, which have to register anew if they live."""
    missed = {m.incarnation for m in round_.members if m.node in gone}
    without = replace(round_, missed=(*round_.missed, *sorted(missed))[-256:])
    return rules.suspect(at, without, gone, rules.uncharge(at, without))


def _has_trained(at: Moment, round_: Round, failure: Failure | None = None) -> bool:
    """Whether the script is known to have made a step in this round.

    One without a Checkpointer reports none. It counts as having trained after
    `restarts.STARTS_WITHIN`.
    """
    if any(each.step > round_.resume.step for each in intervals.told(at.seen, round_)):
        return True
    lived = at.now - at.seen.round_at
    return failure is not None and not failure.attached and lived >= restarts.STARTS_WITHIN


def _planned(at: Moment, round_: Round) -> RoundDecision:
    """Handle arrivals, drains and new code: agree on a step, seal it, then form the next round."""
    eligible = rules.eligible_nodes(at, round_)
    wanted = rules.members_of(at, round_.members, eligible)
    before, after = {m.node for m in round_.members}, {m.node for m in wanted}
    arriving = [m.node for m in wanted if m.node not in before]
    leaving = [m.node for m in round_.members if m.node not in after]
    recoded = at.settings.code != round_.code
    if not (arriving or leaving or recoded):
        return _tune(at, round_, _planned_wake(at, round_))
    drained = [name for name in leaving if name in at.seen.drains]
    if arriving and not drained and not recoded:
        quiet_at = _quiet_at((eligible[name] for name in arriving), at.settings)
        if at.now < quiet_at and len(wanted) < at.settings.max_nodes:
            return RoundDecision(reason="waits briefly for more nodes", wake_at=quiet_at)
    cause: Cause = "drain" if drained else "arrival" if arriving else "settings"
    names = tuple(sorted(drained or arriving or leaving))
    if not (leaving or recoded) and agreement.have_left(at.seen, round_):
        again = at.seen.proposal_at + agreement.ASKS_AGAIN
        if at.now >= again:
            return _withdraw(at.seen, round_, None)
        return RoundDecision(reason="the script is ending: nodes that join now wait", wake_at=again)
    deadline = _save_deadline(at, round_, leaving)
    standing = agreement.advance(
        at.seen, round_, rules.describe(cause, names, 0), deadline, at.now, at.new_id
    )
    if standing.over:
        return _change(at, replace(round_, plain=_plain(at.seen, round_)), cause, names)
    writes = (WriteProposal(standing.proposal),) if standing.proposal is not None else ()
    return RoundDecision(writes, standing.reason, standing.wake_at)


def _tune(at: Moment, round_: Round, wake: float | None) -> RoundDecision:
    """Change the intervals where that pays; the members stay.

    Ranks must not disagree on the intervals. So all seal one step, wait there, and go on with the
    new intervals in the same round.
    """
    current = agreement.current_of(at.seen, round_)
    wanted = intervals.change(at, round_) if current is None else current.schedule
    if wanted is None:
        return _withdraw(at.seen, round_, wake)
    deadline = at.now + agreement.LIMIT + agreement.time_for_steps(rules.step_time(at.seen))
    standing = agreement.advance(
        at.seen, round_, intervals.describe(wanted), deadline, at.now, at.new_id, wanted
    )
    writes: tuple[Action, ...] = ()
    if standing.agreed and current is not None:
        applied = replace(current, cancelled=True, applied=True)
        writes = WriteRound(replace(round_, schedule=wanted)), WriteProposal(applied)
    elif standing.over and current is not None:
        writes = (WriteProposal(replace(current, cancelled=True)),)
    elif standing.proposal is not None:
        writes = (WriteProposal(standing.proposal),)
    return RoundDecision(writes, standing.reason, standing.wake_at)


def _withdraw(seen: RunState, round_: Round, wake: float | None) -> RoundDecision:
    """Cancel a proposal whose reason is gone, so that the waiting workers go on."""
    current = agreement.current_of(seen, round_)
    if current is None:
        return RoundDecision(reason=f"round {round_.number} trains", wake_at=wake)
    return RoundDecision((WriteProposal(replace(current, cancelled=True)),), "no change is needed")


def _plain(seen: RunState, round_: Round) -> int:
    """Return `Round.plain`: whether the script has no Checkpointer, from the members' votes."""
    current = agreement.current_of(seen, round_)
    votes = agreement.votes_on(seen, round_, current) if current is not None else []
    if any(vote.plain for vote in votes):
        return round_.plain or round_.number + 1
    return 0 if votes else round_.plain


def _change(at: Moment, round_: Round, cause: Cause, names: tuple[str, ...]) -> RoundDecision:
    """Proposes the round after the started `round_`."""
    eligible = rules.eligible_nodes(at, round_)
    kept = eligible.keys() - in_place.fallen(round_, at.seen.failures.values())
    if cause == "worker" and len(kept) >= at.settings.min_nodes and not at.settings.gang:
        # Their workers lose nothing. The node that has lost one comes back as nodes arrive.
        eligible = {name: eligible[name] for name in kept}
    members = rules.members_of(at, round_.members, eligible)
    round_ = rules.recharge(at, round_, members)
    past = intervals.lived(at, round_)
    after = Round(
        number=round_.number + 1,
        incarnation=at.new_id(),
        phase="proposed",
        members=members,
        cause=cause,
        reason=rules.describe(cause, names, len(members)),
        nodes=names,
        proposed_at=at.now,
        parent=round_.incarnation,
        lineage=round_.lineage,
        known=round_.known,
        schedule=intervals.following(at, round_, members, intervals.ended(past, cause, len(names))),
        past=past,
        code=at.settings.code,
        charged=round_.charged,
        streak=round_.streak if cause in (*restarts.FAILURES, "arrival") else Streak(),
        missed=round_.missed,
        late=round_.late,
        suspects=round_.suspects,
        excused=round_.excused,
        plain=round_.plain,
        rests=round_.rests and cause != "settings",
        trained=at.settings.code == round_.code and (round_.trained or _has_trained(at, round_)),
        parent_from_memory=round_.resume.kind == "memory",
        fruitless=0 if cause == "settings" else round_.fruitless,
        partners=round_.partners,
        run_id=round_.run_id or round_.incarnation,
    )
    return RoundDecision((CloseRound(round_), WriteRound(after)), after.reason)


# -- the end --------------------------------------------------------------------------------------


def _succeed(at: Moment, round_: Round) -> RoundDecision:
    ends = [at.seen.finished[f"{round_.incarnation}/{m.node}"] for m in round_.members]
    firsts = [end.first_step_at for end in ends if end.first_step_at]
    last = max(ends, key=lambda end: end.end_step)
    job = Job("succeeded", at.now, "all workers finished", final_step=last.end_step)
    complete = CompleteHistory(
        round_.number, min(firsts, default=0.0), last.end_step, last.last_step_at
    )
    return RoundDecision((CloseRound(round_), complete, EndJob(job)), job.reason)


def _fail_behind(
    at: Moment, names: Iterable[str], left: list[str], failures: list[Failure]
) -> RoundDecision:
    """Fails the job, because too few nodes remain.

    Some had finished, waited long enough, and left.
    """
    who = ", ".join(names)
    reason = f"{who} did not finish, and {', '.join(left)} had, and left (--exit-barrier-timeout)"
    job = Job("failed", at.now, reason, failure=blame.first(failures))
    return RoundDecision((EndJob(job),), reason)


# -- what the rules are made of -------------------------------------------------------------------


def _is_here(seen: RunState, member: Member) -> bool:
    live = seen.nodes.get(member.node)
    return live is not None and live.node.incarnation == member.incarnation


def _later_commit(seen: RunState, round_: Round, claim: Acknowledgement) -> Commit | None:
    """Return a commit that the round should have resumed from, or None.

    The object store was away when the round began, turns out to hold a later step, and the round
    has not come that far since. Its own commits would hide that step. Applies only to a round that
    has committed nothing: its own commits are ahead of its reported progress.
    """
    if round_.epoch or round_.plain or claim.commit is None:
        return None
    steps = [each.step for each in intervals.told(seen, round_)]
    reached = max([round_.resume.step, *steps])
    return claim.commit if claim.commit.step > reached else None


def _quiet_at(nodes: Iterable[LiveNode], settings: Settings) -> float:
    return max((node.seen_at for node in nodes), default=0.0) + settings.quiet


def _planned_wake(at: Moment, round_: Round) -> float | None:
    draining = (m.node for m in round_.members if m.node in at.seen.drains)
    ends = rules.must_leave_at(at.seen, draining)
    return min((end for end in ends.values() if at.now < end < math.inf), default=None)


def _save_deadline(at: Moment, round_: Round, leaving: list[str]) -> float:
    """Return when a planned change stops waiting for its save.

    That is a second before a node's end at the latest.
    """
    limit = agreement.LIMIT + agreement.time_for_steps(rules.step_time(at.seen))
    ends = [
        drain.notice.deadline - 1.0
        for name in leaving
        if (drain := at.seen.drains.get(name)) is not None and drain.notice.deadline is not None
    ]
    asked = agreement.current_of(at.seen, round_) is not None
    started = at.seen.proposal_at if asked else at.now
    return min([started + limit, *ends])
