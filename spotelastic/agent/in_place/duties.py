"""Decides when a node's workers outlive their round, and what becomes of them (pure).

Parts of `round_duties.py`. Must never happen:

- workers that rest are in the way of a round: those that do not come to rest in time are killed,
  and so are those that no round takes up;
- a worker that rests enters a round other than the one after its own;
- a node counts as having kept a state of which one worker has lost its part.
"""

import math

from spotelastic.agent import actions as do
from spotelastic.agent.state.values import NodeState, RestingWorkers, Workers
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.view import RunState

PREPARE_WITHIN = 1800.0
"""Seconds in which workers prepare. Those that take longer start with a round, as others do."""


def may_rest(local: NodeState, round_: Round, mine: Member | None) -> bool:
    """Whether this node's workers may outlive their round, and enter `round_`.

    All of them live, can rest, and come from the round before it.
    """
    workers = local.workers
    return (
        workers is not None
        and mine is not None
        and not local.departs
        and not workers.exits
        and not workers.left
        and round_.parent == workers.round
        and round_.cause != "settings"
        and len(workers.listening) == len(workers.alive) == mine.workers
    )


def end_rest(local: NodeState, seen: RunState) -> do.Steps:
    """End workers that rest and are not to enter the current round."""
    resting, round_ = local.resting, seen.round
    if resting is None:
        return
    waits = round_ is not None and not resting.workers.round and _may_prepare(local, round_)
    if not resting.all_hear or not (
        waits or (round_ is not None and _may_enter(local, resting, round_))
    ):
        yield do.EndRest()


def _may_enter(local: NodeState, resting: RestingWorkers, round_: Round) -> bool:
    mine = round_.member(local.node.id) if local.node is not None else None
    return (
        mine is not None
        and not local.departs
        and resting.all_hear
        and (not resting.workers.round or resting.belong_before(round_))
        and round_.cause != "settings"
        and len(resting.workers.alive) == mine.workers
        and (round_.phase == "proposed" or (round_.phase == "started" and bool(round_.in_place)))
    )


def rest(workers: Workers) -> do.Steps:
    """Have workers leave their group, and wait until all of them rest."""
    if workers.all_rest:
        yield do.EndRound(rests=True)
    elif workers.rest_by == math.inf:
        yield do.RestWorkers()
    else:
        yield do.Wake(workers.rest_by)


# -- workers that prepare -------------------------------------------------------------------------


def prepares(local: NodeState, seen: RunState) -> bool:
    """Whether this node has workers prepare, or should, before it counts as arrived."""
    round_ = seen.round
    if round_ is None or not _may_prepare(local, round_) or local.resting is not None:
        return False
    preparing = local.workers is not None and not local.workers.round
    return preparing or prepared(round_) not in local.reports.said


def prepare(local: NodeState, seen: RunState) -> do.Steps:
    """Start workers that prepare, once for each round that trains without this node."""
    round_, membership = seen.round, local.membership
    if round_ is None or round_.phase != "started" or local.workers is not None:
        return
    ready = membership.registered and membership.zygote and bool(local.store.daemon)
    if ready and prepares(local, seen):
        yield do.PrepareWorkers(round_)


def look_after_prepared(local: NodeState, seen: RunState, now: float) -> do.Steps:
    """Lets workers prepare until all of them rest, unless they fail or are in the way."""
    workers, round_ = local.workers, seen.round
    if workers is None:
        return
    until = workers.started_at + PREPARE_WITHIN
    if not workers.alive:
        yield do.EndRound()
    elif workers.killed:
        return
    elif round_ is None or not _may_prepare(local, round_) or workers.exits or now >= until:
        yield do.KillWorkers()
    elif workers.all_rest:
        yield do.EndRound(rests=True)
    else:
        yield do.Wake(until)


def _may_prepare(local: NodeState, round_: Round) -> bool:
    """Whether a round goes on without this node that its workers could enter later."""
    outside = local.node is None or round_.member(local.node.id) is None
    notice = local.departure.notice
    leaves = local.departs or (notice is not None and notice.kind.traits.drains)
    return outside and round_.phase != "over" and round_.rests and not leaves


# -- the round ------------------------------------------------------------------------------------


def take_up(local: NodeState, round_: Round, member: Member) -> do.Steps:
    """Has this node's workers take up the round: those that rest, or new ones."""
    incarnation = round_.incarnation
    if local.resting is not None:
        if _may_enter(local, local.resting, round_):
            yield do.EnterRound(round_, member)
    elif round_.in_place == "keep" and (
        local.agreement.kept == incarnation or not round_.resume.holders
    ):
        # They have ended meanwhile, and with them the state that the round counts on.
        if not_kept(round_) not in local.reports.said:
            yield do.ReportNotKept(round_)
    elif local.membership.zygote and not local.departure.leaving:
        yield do.StartWorkers(round_, member)


def await_entry(local: NodeState, round_: Round, workers: Workers, now: float) -> do.Steps:
    """Replace workers that were told of the round and do not run.

    torch would find that only after minutes. Workers are asked until they have made a step, because
    the others wait for them until then.
    """
    if workers.awaited and now >= workers.answer_by:
        if not workers.killed:
            yield do.KillWorkers()
        if not_kept(round_) not in local.reports.said:
            ranks = ", ".join(str(workers.first_rank + each) for each in sorted(workers.awaited))
            yield do.ReportNotKept(round_, f"rank {ranks} did not answer when the round began")
    elif workers.killed or workers.exits or workers.failed or not workers.home:
        return
    elif workers.awaited:
        yield do.Wake(workers.answer_by)
    elif local.reports.step > workers.resumed or workers.left or not workers.listening:
        return
    else:
        yield do.AskWorkers() if now >= workers.ask_at else do.Wake(workers.ask_at)


def prepared(round_: Round) -> str:
    """Return the topic that says that workers were started to prepare beside a round."""
    return f"prepared {round_.incarnation}"


def not_kept(round_: Round) -> str:
    """Return the topic of that report."""
    return f"not kept {round_.incarnation}"
