"""Decides how a proposed round becomes a started one (pure).

A round starts when every member is ready. A member that does not get ready in time is left out of
a new proposal. At the start one source is chosen that all ranks resume from. A proposal with fewer
than min nodes stays as it is and waits.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spotelastic_checkpoints.types import Commit, Resume

from spotelastic.model.counting import counted
from spotelastic.model.in_place import Standing
from spotelastic.model.job import Job
from spotelastic.model.round import LARGE, Acknowledgement, InPlace, Partner, Round, Streak
from spotelastic.rendezvous import intervals, rules
from spotelastic.rendezvous.decision import (
    Action,
    CompleteHistory,
    EndJob,
    Moment,
    RoundDecision,
    WriteRound,
)
from spotelastic.rendezvous.failures import blame, restarts
from spotelastic.rendezvous.partners import partners
from spotelastic.rendezvous.sources import in_place
from spotelastic.rendezvous.sources.resume import (
    Held,
    choose,
    could_be_newer,
    extend,
    is_newest,
    newest_known,
    with_ancestors,
)
from spotelastic.rendezvous.view import LiveNode

LONGEST_SEEN = 5.0
"""Most seconds that members are given to answer after some were late again and again."""
SURELY_LOST = 1 / 3
"""Part of that time after which a member is left out if its peers have lost their connections, and
all others have answered. None is left where nobody listens at its daemon's port.
"""
TOLD_WITHIN = 2.0
"""Seconds that the end of a job waits for the failure of which peers have told."""
NONE = Streak()
OFFER_WITHIN = 5.0
"""Seconds that a round with missing slots waits for offers from nodes outside it."""


def gather(at: Moment, round_: Round) -> RoundDecision:
    """Wait until every member is ready.

    Members that do not answer in time are left out of another proposal.
    """
    round_ = blame.corrected(round_, at.seen.failures.values())
    eligible = rules.eligible_nodes(at, round_)
    waiting = len(round_.members) < at.settings.min_nodes
    acks = {m.node: rules.ack_of(at.seen, round_, m.node) for m in round_.members}
    ready_by = at.seen.round_at + at.settings.ready_within
    # Whether a gang has lost a node is for its lease to tell: the job ends with it.
    seen_by = ready_by if at.settings.gang else at.seen.round_at + _seen_within(at, round_)
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
    if silent and (away := rules.store_was_away(at)):
        return away
    if gone or late:
        return _without(at, round_, gone, late)
    possible = rules.members_of(at, round_.members, eligible) if waiting or round_.pause else ()
    if len(possible) > len(round_.members):
        return _repropose(at, round_, eligible, restarts.unpaused(round_.streak))
    if not all(_is_ready(ack) for ack in acks.values()):
        unseen = any(ack is None for ack in acks.values())
        return RoundDecision(reason="members get ready", wake_at=seen_by if unseen else ready_by)
    if waiting:
        short = at.settings.min_nodes - len(round_.members)
        return RoundDecision(reason=f"waits for {counted(short, 'node')} more")
    if len(round_.charged) > at.settings.max_restarts:
        times = "once" if len(round_.charged) == 1 else f"{len(round_.charged)} times"
        spent = f"the script failed {times}, --max-restarts {at.settings.max_restarts}"
        return _give_up(at, round_, spent)
    answers = [ack for ack in acks.values() if ack is not None]
    if not _lead(round_, answers).store:
        return RoundDecision(reason=f"waits for the store on {round_.members[0].node}")
    return _begin(at, round_, answers)


def _without(at: Moment, round_: Round, gone: set[str], late: set[str]) -> RoundDecision:
    if at.settings.gang and gone - set(at.seen.drains):
        return rules.fail_gang(at, gone)
    missed = {m.incarnation for m in round_.members if m.node in late}
    without = replace(
        round_,
        missed=(*round_.missed, *sorted(missed))[-256:],
        late=round_.late + bool(late),
    )
    lost = (gone | late) - set(at.seen.drains)
    if lost and round_.cause != "settings":  # with new code every node starts again
        excused = rules.uncharge(at, without)
        without = excused if gone else rules.suspect(at, without, late, excused)
        names = tuple(dict.fromkeys((*(round_.nodes if round_.cause == "loss" else ()), *lost)))
        without = replace(without, cause="loss", nodes=tuple(sorted(names)))
    if ill := tuple(sorted(gone & {*rules.ill_members(at.seen, round_)})):
        # What had failed before was not the script's fault: nothing is charged, and nobody waits.
        names = ill if without.cause in restarts.FAILURES else without.nodes
        cause = "drain" if without.cause in restarts.FAILURES else without.cause
        without = replace(rules.uncharge(at, without, ill=True), cause=cause, nodes=names)
    eligible = rules.eligible_nodes(at, without)
    return _repropose(at, without, eligible)


def _repropose(
    at: Moment, round_: Round, eligible: dict[str, LiveNode], streak: Streak = NONE
) -> RoundDecision:
    """Proposes the round with other members, and without a pause.

    The change may help a failing script. `streak` is that of the failures that a loss does not
    explain.
    """
    members = rules.members_of(at, round_.members, eligible)
    again = replace(
        rules.recharge(at, round_, members),
        incarnation=at.new_id(),
        members=members,
        reason=rules.describe(round_.cause, round_.nodes, len(members)),
        proposed_at=at.now,
        streak=streak,
        pause=0.0,
    )
    return RoundDecision((WriteRound(again),), again.reason)


def _seen_within(at: Moment, round_: Round) -> float:
    """Return the seconds for each member to answer.

    They grow each time a member was late. Otherwise a slow node would be left out, come back, and
    be left out again for ever.
    """
    once = at.settings.seen_within * max(1.0, len(round_.members) / LARGE)
    if lost := in_place.lost_peer(at.seen, round_):
        once *= 0.0 if lost in at.seen.refusing else SURELY_LOST
    return max(once, min(once * 2.0**round_.late, LONGEST_SEEN))


def _begin(at: Moment, round_: Round, acks: list[Acknowledgement]) -> RoundDecision:
    """Start the round, all of whose members are ready, once nothing else is to be waited for."""
    others = {name: node for name, node in at.seen.nodes.items() if round_.member(name) is None}
    offers = {name: offer for name, offer in at.seen.offers.items() if name in others}
    held = [Held(ack.node, ack.daemon, ack.snapshots) for ack in acks]
    held += [Held(name, offer.daemon, offer.snapshots) for name, offer in offers.items()]
    line = _with_ancestors(round_, acks)
    resume = choose(line.parent, line.lineage, held, _commits(acks), line.known)
    kept = in_place.keepers(round_, acks)
    going_on = _keep(at, round_, acks, kept, resume)
    if going_on is not None:
        return going_on
    offered = {name for name, offer in offers.items() if offer.round == round_.incarnation}
    offers_until = at.seen.round_at + OFFER_WITHIN
    more = at.now < offers_until and not offered >= set(others)
    if more and could_be_newer(resume, line.parent, line.lineage, held):
        return RoundDecision(reason="waits for the slots of nodes that leave", wake_at=offers_until)
    # What nobody has saved cannot be put back: a fresh start takes fresh processes.
    how: InPlace = "restore" if kept and resume.kind != "fresh" else ""
    if how and _is_unplanned(round_) and _goes_on_without_others(at, round_, kept):
        return _with_keepers(at, round_, kept)  # new processes take as long as the script does
    return _hold_back(at, round_, resume) or _start(at, round_, resume, acks, how)


def _keep(
    at: Moment,
    round_: Round,
    acks: list[Acknowledgement],
    kept: Mapping[str, tuple[Standing, ...]],
    chosen: Resume,
) -> RoundDecision | None:
    """Goes on from the state that the workers of the `kept` members have.

    It does so if they agree on a step and the storage has no later one. `chosen` is what all
    members could restore.
    """
    step = in_place.agreed_step([standing for each in kept.values() for standing in each])
    if step is None or not is_newest(round_.parent, step, _commits(acks), round_.known):
        return None
    whole = len(kept) == len(round_.members)
    own = in_place.source(round_, step, chosen, all_keep=whole)
    if not (own and not _is_unplanned(round_)) and _goes_on_without_others(at, round_, kept):
        # They lose nothing, and wait for nobody.
        return _with_keepers(at, round_, kept)
    if own is None:
        return None
    return _hold_back(at, round_, own) or _start(at, round_, own, acks, "keep")


def _is_unplanned(round_: Round) -> bool:
    return round_.cause in (*restarts.FAILURES, "loss")


def _goes_on_without_others(at: Moment, round_: Round, kept: Collection[str]) -> bool:
    """Whether there are members without processes that live on, and enough with them."""
    enough = at.settings.min_nodes <= len(kept) < len(round_.members)
    return enough and not at.settings.gang


def _with_keepers(at: Moment, round_: Round, kept: Collection[str]) -> RoundDecision:
    """Proposes the round with these members. The others come when all have agreed on a step."""
    eligible = rules.eligible_nodes(at, round_)
    return _repropose(at, round_, {node: eligible[node] for node in kept})


def _hold_back(at: Moment, round_: Round, resume: Resume) -> RoundDecision | None:
    """Return the wait before a script that failed without a new save is started again.

    It grows with each such failure.
    """
    if round_.cause not in restarts.FAILURES or _advanced(round_, resume):
        return None
    if restarts.loops(round_.streak):
        failed = f"the script failed {round_.streak.alike} times in a row in the same way"
        return _give_up(at, round_, f"{failed}, without saving anything new")
    pause = restarts.pause(round_.streak)
    if pause and not round_.pause:
        again = f"{round_.streak.failures} times in a row: starts in {pause:g} s"
        paused = replace(round_, pause=pause, reason=f"{round_.reason}; {again}")
        return RoundDecision((WriteRound(paused),), paused.reason)
    starts_at = at.seen.round_at + round_.pause
    return RoundDecision(reason=round_.reason, wake_at=starts_at) if at.now < starts_at else None


def _advanced(round_: Round, resume: Resume) -> bool:
    """Whether it resumes later than the round before it did."""
    return resume.step > (round_.lineage[-1].step if round_.lineage else 0)


def _start(
    at: Moment, round_: Round, resume: Resume, acks: list[Acknowledgement], how: InPlace
) -> RoundDecision:
    lead, line = _lead(round_, acks), _with_ancestors(round_, acks)
    if line is not round_ and resume.kind == "memory":
        round_ = replace(round_, reason=f"{round_.reason}; the store has lost those before")
    started = replace(
        round_,
        phase="started",
        started_at=at.now,
        store=lead.store,
        epoch=lead.epoch,
        run_id=lead.run_id or round_.run_id,
        resume=resume,
        known=newest_known(_commits(acks)),
        lineage=extend(line, resume),
        # Only now it is certain: until then a worker's failure may turn out to be a loss.
        past=intervals.ended(round_.past, round_.cause, len(round_.nodes)),
        streak=Streak() if _advanced(round_, resume) else round_.streak,
        pause=0.0,
        in_place=how,
        fruitless=round_.fruitless + 1 if how and not _advanced(round_, resume) else 0,
        partners=_partners(at, round_, acks),
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
    return RoundDecision(actions, f"round {round_.number} starts at step {resume.step}")


def _with_ancestors(round_: Round, acks: list[Acknowledgement]) -> Round:
    told = [ack.ancestry for ack in acks if ack.ancestry is not None]
    return with_ancestors(round_, told, _commits(acks), _lead(round_, acks).run_id)


def _partners(at: Moment, round_: Round, acks: Iterable[Acknowledgement]) -> tuple[Partner, ...]:
    """Return who keeps whose replica in the round that starts."""
    if not at.settings.replicate.on:
        return ()
    previous = {partner.of: partner.node for partner in round_.partners}
    daemons = {ack.node: ack.daemon for ack in acks}
    reached = [member for member in round_.members if daemons.get(member.node)]
    found = partners(reached, previous, at.seen.drains.keys())
    return tuple(Partner(keeper, of, daemons[of]) for of, keeper in found.items())


def _give_up(at: Moment, round_: Round, reason: str) -> RoundDecision:
    told_by = at.seen.round_at + TOLD_WITHIN
    if round_.cause == "worker" and not round_.nodes and at.now < told_by:
        return RoundDecision(reason="who failed first is not known yet", wake_at=told_by)
    first = blame.of_job(at.seen.failures.values(), round_.parent)
    return RoundDecision((EndJob(Job("failed", at.now, reason, failure=first)),), reason)


def _commits(acks: Iterable[Acknowledgement]) -> list[Commit]:
    return [ack.commit for ack in acks if ack.commit is not None]


def _lead(round_: Round, acks: Iterable[Acknowledgement]) -> Acknowledgement:
    return next(ack for ack in acks if ack.node == round_.members[0].node)


def _is_ready(ack: Acknowledgement | None) -> bool:
    return ack is not None and ack.phase == "ready"
