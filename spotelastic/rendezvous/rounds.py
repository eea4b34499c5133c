"""Pure: what the holder does next about the round. `membership.py` performs it.

Must never happen, and what prevents it here:

- two current rounds: one key, written under the holder's election key and the key's revision;
- more than max or, once started, fewer than min nodes: `place` limits, `_gather` starts none;
- a round that waits for a node that is gone: each phase has a deadline per member;
- a restart charged to the user's code for a lost node: `_uncharge`;
- a planned change that loses a step: it waits for the agreement (`agreement.py`) to be sealed.

The current round is *proposed* (members and slots), then *started* (store, resume source) once all
members are ready. A proposal that cannot start yet, because fewer than min nodes are left, stands
as proposed and waits. Everything is recomputed from what is seen, so a new holder goes on where
the old one ended.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from spotelastic.model.agreement import Proposal
from spotelastic.model.job import ENDED, Failure, Job, Settings
from spotelastic.model.round import Acknowledgement, Cause, Commit, Member, Resume, Round, Streak
from spotelastic.rendezvous import agreement, restarts
from spotelastic.rendezvous.placement import place
from spotelastic.rendezvous.resume import Held, choose, could_be_newer, extend
from spotelastic.rendezvous.view import LiveNode, Seen

SAVE_RESERVE = 3.0
"""Seconds before a node's end that are kept for its last save."""
AGREEMENT_LIMIT = 15.0
"""Seconds that a planned change without a deadline waits for its save."""
FAILURES = ("worker", "stall", "store")
"""Causes that come back by themselves if nothing is done about them."""
OFFER_WITHIN = 5.0
"""Seconds that a round waits for the slots of nodes it goes on without, where some are missing."""


@dataclass(frozen=True, slots=True)
class WriteRound:
    """Replace the current round."""

    round: Round


@dataclass(frozen=True, slots=True)
class CloseRound:
    """The started round `round` ends: keep it as history. `last_step` 0: not known yet."""

    round: Round


@dataclass(frozen=True, slots=True)
class CompleteHistory:
    """Add what the members saw of the round before to its history record."""

    number: int
    first_step_at: float
    last_step: int
    last_step_at: float


@dataclass(frozen=True, slots=True)
class WriteProposal:
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class EndJob:
    job: Job


Action = WriteRound | CloseRound | CompleteHistory | WriteProposal | EndJob


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, why (one line for people), and when to look again if nothing happens."""

    actions: tuple[Action, ...] = ()
    reason: str = ""
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Moment:
    """What every rule below is given: the run as seen, its settings, the time, fresh names."""

    seen: Seen
    settings: Settings
    now: float
    new_id: Callable[[], str]


def decide(seen: Seen, now: float, new_id: Callable[[], str]) -> Decision:
    """The next step of the run. `new_id` names what is created; it is the only outside input."""
    if seen.settings is None:
        return Decision(reason="waits for the job's settings")
    if seen.job is not None and seen.job.state in ENDED:
        return Decision(reason=f"the job has {seen.job.state}")
    at = _Moment(seen, seen.settings, now, new_id)
    if seen.round is None:
        return _first(at)
    if seen.round.phase == "proposed":
        return _gather(at, seen.round)
    return _watch_over(at, seen.round)


# -- no round yet ---------------------------------------------------------------------------------


def _first(at: _Moment) -> Decision:
    eligible = _eligible(at, None)
    if len(eligible) < at.settings.min_nodes:
        return Decision(reason=f"waits for nodes: {len(eligible)} of {at.settings.min_nodes}")
    quiet_at = _quiet_at(eligible.values(), at.settings)
    if len(eligible) < at.settings.max_nodes and at.now < quiet_at:
        return Decision(reason="waits a moment for further nodes", wake_at=quiet_at)
    members = _place(at, (), eligible)
    first = Round(
        number=1,
        incarnation=at.new_id(),
        phase="proposed",
        members=members,
        cause="start",
        reason=f"first round of {_nodes(len(members))}",
        nodes=tuple(m.node for m in members),
        proposed_at=at.now,
        schedule=at.settings.schedule,
    )
    return Decision((WriteRound(first),), first.reason)


# -- proposed -------------------------------------------------------------------------------------


def _gather(at: _Moment, round_: Round) -> Decision:
    """Wait until every member is ready; decide again without those who do not answer in time."""
    eligible = _eligible(at, round_)
    waiting = len(round_.members) < at.settings.min_nodes
    acks = {m.node: _ack(at.seen, round_, m.node) for m in round_.members}
    seen_by = at.seen.round_at + at.settings.seen_within * max(1.0, len(round_.members) / 64)
    ready_by = at.seen.round_at + at.settings.ready_within
    gone = {
        m.node
        for m in round_.members
        if m.node not in eligible or eligible[m.node].node.incarnation != m.incarnation
    }
    late = {
        node
        for node, ack in acks.items()
        if node not in gone
        and ((ack is None and at.now >= seen_by) or (at.now >= ready_by and not _is_ready(ack)))
    }
    silent = {node for node in gone if node not in at.seen.nodes} | late
    if silent and at.now < _trusts_at(at):
        return Decision(reason="the store was away", wake_at=_wake(_trusts_at(at)))
    if gone or late:
        return _without(at, round_, gone, late)
    if (waiting or round_.pause) and len(_place(at, round_.members, eligible)) > len(
        round_.members
    ):
        return _repropose(at, round_, eligible)
    if not all(_is_ready(ack) for ack in acks.values()):
        unseen = any(ack is None for ack in acks.values())
        return Decision(reason="members get ready", wake_at=seen_by if unseen else ready_by)
    if waiting:
        short = at.settings.min_nodes - len(round_.members)
        return Decision(reason=f"waits for {_nodes(short)} more")
    if len(round_.charged) > at.settings.max_restarts:
        spent = f"the script failed {_times(round_)}, --max-restarts {at.settings.max_restarts}"
        return _give_up(at, round_, spent)
    answers = [ack for ack in acks.values() if ack is not None]
    if not _lead(round_, answers).store:
        return Decision(reason=f"waits for the store on {round_.members[0].node}")
    return _begin(at, round_, answers)


def _without(at: _Moment, round_: Round, gone: set[str], late: set[str]) -> Decision:
    if at.settings.gang and gone - set(at.seen.drains):
        return _fail_gang(at, gone)
    missed = {m.incarnation for m in round_.members if m.node in late}
    without = replace(round_, missed=(*round_.missed, *sorted(missed))[-256:])
    lost = (gone | late) - set(at.seen.drains)
    if lost:
        without = _uncharge(at, without)
        names = tuple(dict.fromkeys((*(round_.nodes if round_.cause == "loss" else ()), *lost)))
        without = replace(without, cause="loss", nodes=tuple(sorted(names)))
    eligible = _eligible(at, without)
    return _repropose(at, without, eligible)


def _repropose(at: _Moment, round_: Round, eligible: dict[str, LiveNode]) -> Decision:
    """With other members. It may be what a failing script was waiting for: no pause any more."""
    members = _place(at, round_.members, eligible)
    again = replace(
        round_,
        incarnation=at.new_id(),
        members=members,
        reason=_reason(round_.cause, round_.nodes, len(members)),
        proposed_at=at.now,
        streak=Streak(),
        pause=0.0,
    )
    return Decision((WriteRound(again),), again.reason)


def _begin(at: _Moment, round_: Round, acks: list[Acknowledgement]) -> Decision:
    """All are ready: wait for what is still to be waited for, then start."""
    others = {name: node for name, node in at.seen.nodes.items() if round_.member(name) is None}
    offers = {name: offer for name, offer in at.seen.offers.items() if name in others}
    held = [Held(ack.node, ack.daemon, ack.snapshots) for ack in acks]
    held += [Held(name, offer.daemon, offer.snapshots) for name, offer in offers.items()]
    commits: list[Commit] = [ack.commit for ack in acks if ack.commit is not None]
    resume = choose(round_.parent, round_.lineage, held, commits)
    offered = {name for name, offer in offers.items() if offer.round == round_.incarnation}
    offers_until = at.seen.round_at + OFFER_WITHIN
    more = at.now < offers_until and not offered >= set(others)
    if more and could_be_newer(resume, round_.parent, round_.lineage, held):
        return Decision(reason="waits for the slots of nodes that leave", wake_at=offers_until)
    return _hold_back(at, round_, resume) or _start(at, round_, resume, acks)


def _hold_back(at: _Moment, round_: Round, resume: Resume) -> Decision | None:
    """A script that fails again and again, and saved nothing new, is not started at once."""
    if round_.cause not in FAILURES or _advanced(round_, resume):
        return None
    if restarts.loops(round_.streak):
        failed = f"the script failed {round_.streak.alike} times in a row in the same way"
        return _give_up(at, round_, f"{failed}, without saving anything new")
    pause = restarts.pause(round_.streak)
    if pause and not round_.pause:
        again = f"{round_.streak.failures} times in a row: starts in {pause:g} s"
        paused = replace(round_, pause=pause, reason=f"{round_.reason}; {again}")
        return Decision((WriteRound(paused),), paused.reason)
    starts_at = at.seen.round_at + round_.pause
    return Decision(reason=round_.reason, wake_at=starts_at) if at.now < starts_at else None


def _advanced(round_: Round, resume: Resume) -> bool:
    """Whether it resumes later than the round before it did."""
    return resume.step > (round_.lineage[-1].step if round_.lineage else 0)


def _start(at: _Moment, round_: Round, resume: Resume, acks: list[Acknowledgement]) -> Decision:
    lead = _lead(round_, acks)
    started = replace(
        round_,
        phase="started",
        started_at=at.now,
        store=lead.store,
        epoch=lead.epoch,
        resume=resume,
        lineage=extend(round_, resume),
        streak=Streak() if _advanced(round_, resume) else round_.streak,
        pause=0.0,
    )
    actions: tuple[Action, ...] = (WriteRound(started),)
    ends = [ack.end for ack in acks if ack.end is not None and ack.end.incarnation == round_.parent]
    if ends:
        firsts = [end.first_step_at for end in ends if end.first_step_at]
        last = max(ends, key=lambda end: (end.last_step, -end.last_step_at))
        actions += (
            CompleteHistory(
                round_.number - 1, min(firsts, default=0.0), last.last_step, last.last_step_at
            ),
        )
    return Decision(actions, f"round {round_.number} starts at step {resume.step}")


# -- started --------------------------------------------------------------------------------------


def _watch_over(at: _Moment, round_: Round) -> Decision:
    if _late_epoch(at.seen, round_):
        claimed = replace(round_, epoch=_late_epoch(at.seen, round_))
        return Decision((WriteRound(claimed),), f"storage epoch {claimed.epoch} claimed")
    done = {m.node for m in round_.members if f"{round_.incarnation}/{m.node}" in at.seen.finished}
    if len(done) == len(round_.members):
        return _succeed(at, round_)
    unplanned = _unplanned(at, round_, done)
    if unplanned is not None:
        return unplanned
    if done:
        return Decision(reason=f"{len(done)} of {len(round_.members)} nodes have finished")
    return _planned(at, round_)


def _unplanned(at: _Moment, round_: Round, done: set[str]) -> Decision | None:
    """A lost node or a failed worker: the next round at once, with who is there."""
    absent = [m.node for m in round_.members if not _is_here(at.seen, m)]
    lost = tuple(sorted(set(absent) - done))
    if any(node not in at.seen.nodes for node in lost) and at.now < _trusts_at(at):
        return Decision(reason="the store was away", wake_at=_wake(_trusts_at(at)))
    failures = [f for f in at.seen.failures.values() if f.round == round_.incarnation]
    left = sorted(done & set(absent))
    if left and (lost or failures) and len(_eligible(at, round_)) < at.settings.min_nodes:
        return _fail_behind(at, lost or sorted({f.node for f in failures}), left, failures)
    if lost:
        if at.settings.gang and not all(name in at.seen.drains for name in lost):
            return _fail_gang(at, lost)
        drained = all(name in at.seen.drains for name in lost)
        cause: Cause = "drain" if drained else "loss"
        ended = _uncharge(at, round_)
        return _change(at, ended, cause, lost)
    if failures:
        first = min(failures, key=lambda f: f.at)
        streak = restarts.after(round_.streak, first, at.now - at.seen.round_at)
        ended = replace(round_, streak=streak)
        if first.rank < 0:
            return _change(at, ended, "store", (first.node,))
        ended = replace(ended, charged=(*ended.charged, at.now))
        cause = "stall" if first.stalled else "worker"
        return _change(at, ended, cause, (first.node,))
    return None


def _planned(at: _Moment, round_: Round) -> Decision:
    """Arrivals, departures by notice, new settings: agree on a step, seal, then the next round."""
    eligible = _eligible(at, round_)
    wanted = _place(at, round_.members, eligible)
    before, after = {m.node for m in round_.members}, {m.node for m in wanted}
    arriving = [m.node for m in wanted if m.node not in before]
    leaving = [m.node for m in round_.members if m.node not in after]
    resettled = at.settings.schedule != round_.schedule
    wake = _planned_wake(at, round_)
    if not (arriving or leaving or resettled):
        return _withdraw(at.seen, round_, wake)
    drained = [name for name in leaving if name in at.seen.drains]
    if arriving and not drained and not resettled:
        quiet_at = _quiet_at((eligible[name] for name in arriving), at.settings)
        if at.now < quiet_at and len(wanted) < at.settings.max_nodes:
            return Decision(reason="waits a moment for further nodes", wake_at=quiet_at)
    cause: Cause = "drain" if drained else "arrival" if arriving else "settings"
    names = tuple(sorted(drained or arriving or leaving))
    deadline = _save_deadline(at, round_, leaving)
    standing = agreement.advance(
        at.seen, round_, _reason(cause, names, 0), deadline, at.now, at.new_id
    )
    if standing.over:
        return _change(at, replace(round_, plain=_plain(at.seen, round_)), cause, names)
    writes = (WriteProposal(standing.proposal),) if standing.proposal is not None else ()
    return Decision(writes, standing.reason, standing.wake_at)


def _withdraw(seen: Seen, round_: Round, wake: float | None) -> Decision:
    """The reason for a planned change is gone: let the workers that wait go on."""
    current = agreement.current_of(seen, round_)
    if current is None:
        return Decision(reason=f"round {round_.number} trains", wake_at=wake)
    return Decision((WriteProposal(replace(current, cancelled=True)),), "no change is needed")


def _plain(seen: Seen, round_: Round) -> int:
    """Whether the script has no Checkpointer, from how its members have voted."""
    current = agreement.current_of(seen, round_)
    votes = agreement.votes_on(seen, round_, current) if current is not None else []
    if any(vote.plain for vote in votes):
        return round_.plain or round_.number + 1
    return 0 if votes else round_.plain


def _change(at: _Moment, round_: Round, cause: Cause, names: tuple[str, ...]) -> Decision:
    """Propose the round after the started `round_`."""
    eligible = _eligible(at, round_)
    members = _place(at, round_.members, eligible)
    after = Round(
        number=round_.number + 1,
        incarnation=at.new_id(),
        phase="proposed",
        members=members,
        cause=cause,
        reason=_reason(cause, names, len(members)),
        nodes=names,
        proposed_at=at.now,
        parent=round_.incarnation,
        lineage=round_.lineage,
        schedule=at.settings.schedule,
        charged=round_.charged,
        streak=round_.streak if cause in FAILURES else Streak(),
        missed=round_.missed,
        plain=round_.plain,
    )
    return Decision((CloseRound(round_), WriteRound(after)), after.reason)


# -- the end --------------------------------------------------------------------------------------


def _succeed(at: _Moment, round_: Round) -> Decision:
    ends = [at.seen.finished[f"{round_.incarnation}/{m.node}"] for m in round_.members]
    firsts = [end.first_step_at for end in ends if end.first_step_at]
    last = max(ends, key=lambda end: end.end_step)
    job = Job("succeeded", at.now, "all workers finished", final_step=last.end_step)
    complete = CompleteHistory(
        round_.number, min(firsts, default=0.0), last.end_step, last.last_step_at
    )
    return Decision((CloseRound(round_), complete, EndJob(job)), job.reason)


def _give_up(at: _Moment, round_: Round, reason: str) -> Decision:
    failures = [f for f in at.seen.failures.values() if f.round == round_.parent and f.rank >= 0]
    first = min(failures, key=lambda f: f.at, default=None)
    return Decision((EndJob(Job("failed", at.now, reason, failure=first)),), reason)


def _times(round_: Round) -> str:
    count = len(round_.charged)
    return "once" if count == 1 else f"{count} times"


def _fail_behind(
    at: _Moment, names: Iterable[str], left: list[str], failures: list[Failure]
) -> Decision:
    """The group cannot be formed again: some of it had finished, waited long enough, and left."""
    who = ", ".join(names)
    reason = f"{who} did not finish, and {', '.join(left)} had, and left (--exit-barrier-timeout)"
    first = min(failures, key=lambda f: f.at, default=None)
    return Decision((EndJob(Job("failed", at.now, reason, failure=first)),), reason)


def _fail_gang(at: _Moment, names: Iterable[str]) -> Decision:
    reason = f"lost {', '.join(sorted(names))} (--gang)"
    return Decision((EndJob(Job("failed", at.now, reason)),), reason)


# -- what the rules are made of -------------------------------------------------------------------


def _eligible(at: _Moment, round_: Round | None) -> dict[str, LiveNode]:
    """Live nodes that may be in the next round.

    A draining node is left out, unless fewer than min would remain: then it trains on until its
    replacement is there or only the time for its save is left.
    """
    missed = set(round_.missed) if round_ else set()
    live = {
        name: node
        for name, node in at.seen.nodes.items()
        if node.node.incarnation not in missed and _matches(at.seen, node)
    }
    staying = {name: node for name, node in live.items() if name not in at.seen.drains}
    short = at.settings.min_nodes - len(staying)
    if short <= 0 or round_ is None:
        return staying
    doomed = [
        name
        for name in live
        if name in at.seen.drains
        and round_.member(name) is not None
        and at.now < _must_leave_at(at.seen, name)
    ]
    doomed.sort(key=lambda name: -_must_leave_at(at.seen, name))
    return staying | {name: live[name] for name in doomed[:short]}


def _place(
    at: _Moment, previous: Sequence[Member], eligible: dict[str, LiveNode]
) -> tuple[Member, ...]:
    return place(previous, eligible, at.settings.max_nodes, at.settings.rank_policy)


def _must_leave_at(seen: Seen, node: str) -> float:
    notice = seen.drains[node].notice
    if notice.kind == "leave":
        return 0.0
    return math.inf if notice.deadline is None else notice.deadline - SAVE_RESERVE


def _matches(seen: Seen, live: LiveNode) -> bool:
    if seen.reference is None:
        return True
    return live.node.fingerprint.difference(seen.reference.node.fingerprint) is None


def _is_here(seen: Seen, member: Member) -> bool:
    live = seen.nodes.get(member.node)
    return live is not None and live.node.incarnation == member.incarnation


def _ack(seen: Seen, round_: Round, node: str) -> Acknowledgement | None:
    ack = seen.acks.get(node)
    return ack if ack is not None and ack.round == round_.incarnation else None


def _lead(round_: Round, acks: Iterable[Acknowledgement]) -> Acknowledgement:
    return next(ack for ack in acks if ack.node == round_.members[0].node)


def _trusts_at(at: _Moment) -> float:
    """When a missing lease tells again that its node is gone: while the store was away, leases of
    nodes that live ran out. They come back under new ones."""
    if not at.seen.healthy:
        return math.inf
    return at.seen.healthy_since + 2 * at.settings.lease if at.seen.healthy_since else 0.0


def _wake(time: float) -> float | None:
    return time if time < math.inf else None


def _is_ready(ack: Acknowledgement | None) -> bool:
    return ack is not None and ack.phase == "ready"


def _late_epoch(seen: Seen, round_: Round) -> int:
    """An epoch that the first node could claim only after the round had started, else 0."""
    ack = _ack(seen, round_, round_.members[0].node)
    return ack.epoch if ack is not None and round_.epoch == 0 else 0


def _uncharge(at: _Moment, round_: Round) -> Round:
    """Failures shortly before a loss were its consequence, not the user's code.

    Reckoned back from when this holder saw the round: another may have written it, by its clock.
    """
    written = round_.started_at or round_.proposed_at
    horizon = written + (at.now - at.seen.round_at) - (at.settings.lease + 1.0)
    return replace(round_, charged=tuple(when for when in round_.charged if when < horizon))


def _quiet_at(nodes: Iterable[LiveNode], settings: Settings) -> float:
    return max((node.seen_at for node in nodes), default=0.0) + settings.quiet


def _planned_wake(at: _Moment, round_: Round) -> float | None:
    times = [_must_leave_at(at.seen, m.node) for m in round_.members if m.node in at.seen.drains]
    return min((time for time in times if at.now < time < math.inf), default=None)


def _save_deadline(at: _Moment, round_: Round, leaving: list[str]) -> float:
    """When a planned change no longer waits for its save (a second before a noticed end)."""
    ends = [
        drain.notice.deadline - 1.0
        for name in leaving
        if (drain := at.seen.drains.get(name)) is not None and drain.notice.deadline is not None
    ]
    asked = agreement.current_of(at.seen, round_) is not None
    started = at.seen.proposal_at if asked else at.now
    return min([started + AGREEMENT_LIMIT, *ends])


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _reason(cause: Cause, names: tuple[str, ...], size: int) -> str:
    who = ", ".join(names)
    what = {
        "start": "first round",
        "arrival": f"{who} joined",
        "drain": f"{who} leaves",
        "loss": f"{who} was lost",
        "worker": f"a worker failed on {who}",
        "stall": f"the workers stalled, first on {who}",
        "store": f"the store on {who} ended",
        "settings": "the settings changed",
    }[cause]
    return f"{what}: {_nodes(size)}" if size else what
