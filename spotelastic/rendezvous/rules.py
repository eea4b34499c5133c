"""Rules shared by all decisions about rounds (pure).

They say which nodes may join, which count as lost, and which failures are charged.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spotelastic.model.counting import counted
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint
from spotelastic.model.progress import Progress
from spotelastic.model.round import Acknowledgement, Cause, Member, Round, Suspect
from spotelastic.rendezvous.agreement import SMALLEST_MARGIN
from spotelastic.rendezvous.decision import EndJob, Moment, RoundDecision
from spotelastic.rendezvous.placement import place
from spotelastic.rendezvous.view import LiveNode, RunState

SAVE_RESERVE = 3.0
"""Least seconds before a node's end that are reserved for its last save."""
SLACK = 2.0
"""Seconds of that reserve which are a safety margin."""
KNOWN_WITHIN = 15.0
"""Seconds from the failure of a worker until its node knows whether a GPU is to blame."""


def eligible_nodes(at: Moment, round_: Round | None) -> dict[str, LiveNode]:
    """Return the live nodes that may be in the next round.

    A draining node is left out, unless fewer than min would remain. Then it trains on until its
    replacement is there, or until only the time for its save is left.
    """
    missed = set(round_.missed) if round_ else set()
    reference = at.seen.reference
    wanted = reference.node.fingerprint if reference is not None else None
    live = {
        name: node
        for name, node in at.seen.nodes.items()
        if node.node.incarnation not in missed and _matches(node.node.fingerprint, wanted)
    }
    drains = at.seen.drains
    staying = {name: node for name, node in live.items() if name not in drains} if drains else live
    beside = {name for name, node in staying.items() if node.node.prepares}
    if beside and round_ is not None:
        beside -= {member.node for member in round_.members}
    if beside and len(staying) - len(beside) >= at.settings.min_nodes:
        staying = {name: node for name, node in staying.items() if name not in beside}
    short = at.settings.min_nodes - len(staying)
    if short <= 0 or round_ is None:
        return staying
    members = [n for n in live if n in at.seen.drains and round_.member(n) is not None]
    ends = must_leave_at(at.seen, members)
    doomed = [name for name in members if at.now < ends[name]]
    doomed.sort(key=lambda name: -ends[name])
    return staying | {name: live[name] for name in doomed[:short]}


def members_of(
    at: Moment, previous: Sequence[Member], eligible: dict[str, LiveNode]
) -> tuple[Member, ...]:
    return place(previous, eligible, at.settings.max_nodes, at.settings.rank_policy)


def must_leave_at(seen: RunState, nodes: Iterable[str]) -> dict[str, float]:
    """Return until when each of these draining nodes may train."""
    reserve = save_reserve(seen)
    ends = {}
    for name in nodes:
        notice = seen.drains[name].notice
        end = math.inf if notice.deadline is None else notice.deadline - reserve
        ends[name] = end if notice.kind.traits.has_deadline else 0.0
    return ends


def save_reserve(seen: RunState) -> float:
    """Estimates the seconds of an agreed save.

    They are for the steps to the target, the blocking copy, and a margin.

    Adds the upload if no remaining node holds a complete copy. Too few nodes remain then for a
    round that could fetch it from the draining ones.
    """
    told = _told(seen)
    stall = max((progress.stall for progress in told), default=0.0)
    sealed = max(SAVE_RESERVE, (SMALLEST_MARGIN + 1) * step_time(seen) + stall + SLACK)
    if any(progress.whole and progress.node not in seen.drains for progress in told):
        return sealed
    return sealed + max((progress.commit_time for progress in told), default=0.0)


def step_time(seen: RunState) -> float:
    """Return the slowest member's seconds per step; 0 while nothing is measured."""
    return max((progress.step_time for progress in _told(seen)), default=0.0)


def _told(seen: RunState) -> list[Progress]:
    """Return the members' reported progress."""
    round_ = seen.round
    if round_ is None:
        return []
    return [p for p in seen.progress.values() if round_.member(p.node)]


def _matches(fingerprint: Fingerprint, wanted: Fingerprint | None) -> bool:
    return wanted is None or fingerprint is wanted or fingerprint.difference(wanted) is None


def ack_of(seen: RunState, round_: Round, node: str) -> Acknowledgement | None:
    ack = seen.acks.get(node)
    return ack if ack is not None and ack.round == round_.incarnation else None


def trusts_at(at: Moment) -> float:
    """Return from when on a missing lease means that its node is gone.

    While etcd was away, leases of live nodes ran out; those nodes come back under new leases.
    """
    if not at.seen.healthy:
        return math.inf
    return at.seen.healthy_since + 2 * at.settings.lease if at.seen.healthy_since else 0.0


def store_was_away(at: Moment) -> RoundDecision | None:
    """Return the wait until a missing lease means something; None where it does."""
    until = trusts_at(at)
    if at.now >= until:
        return None
    wake_at = until if until < math.inf else None
    return RoundDecision(reason="the store was away", wake_at=wake_at)


def ill_members(seen: RunState, round_: Round) -> tuple[str, ...]:
    """Return the members that nobody waits for any more, although they may still be there."""
    if not seen.drains:
        return ()
    return tuple(
        member.node
        for member in round_.members
        if (drain := seen.drains.get(member.node)) and drain.notice.kind.traits.at_once
    )


def uncharge(at: Moment, round_: Round, *, ill: bool = False) -> Round:
    """Remove failures shortly before a loss from the restart budget: the loss caused them.

    Of a node that is `ill` it takes longer until it is known.

    A new etcd leader renews every lease, so that a loss can surface one lease plus an election
    late; after an outage of etcd (say, a lost zone) later still. Times count back from when this
    holder observed the round, because another node may have written it, by another clock.
    """
    written = round_.started_at or round_.proposed_at
    reach = 2 * at.settings.lease + 1.0 + (KNOWN_WITHIN if ill else 0.0)
    if at.seen.healthy and at.now - reach < trusts_at(at):
        reach += at.now - at.seen.healthy_since
    horizon = written + (at.now - at.seen.round_at) - reach
    return replace(round_, charged=tuple(when for when in round_.charged if when < horizon))


def suspect(at: Moment, round_: Round, late: Iterable[str], excused: Round) -> Round:
    """Return the round with the `late` members as suspects.

    `excused` is `round_` without the failures that the loss of the `late` members would explain.
    """
    suspects = tuple(
        Suspect(name, at.seen.nodes[name].joined) for name in sorted(late) if name in at.seen.nodes
    )
    taken = tuple(when for when in round_.charged if when not in excused.charged)
    return replace(
        excused,
        suspects=(*round_.suspects, *suspects),
        excused=(*round_.excused, *taken),
    )


def recharge(at: Moment, round_: Round, members: Sequence[Member]) -> Round:
    """Charges excused failures after all once every suspect is back and never was gone."""
    live = {name: node.joined for name, node in at.seen.nodes.items()}
    if any(live.get(suspect.node) != suspect.joined for suspect in round_.suspects):
        return replace(round_, suspects=(), excused=(), late=0)
    if not {suspect.node for suspect in round_.suspects} <= {member.node for member in members}:
        return round_
    charged = tuple(sorted((*round_.charged, *round_.excused)))
    return replace(round_, charged=charged, suspects=(), excused=())


def describe(cause: Cause, names: tuple[str, ...], size: int) -> str:
    who = ", ".join(names)
    what = {
        "start": "first round",
        "arrival": f"{who} joined",
        "drain": f"{who} leaves",
        "loss": f"{who} was lost",
        "worker": f"a worker failed on {who}" if who else "workers lost a peer",
        "stall": f"the workers stalled, first on {who}",
        "store": f"the store on {who} ended",
        "settings": "the settings changed",
        "commit": "the object store answers, and has a later step",
    }.get(cause, cause)  # a newer node knows words that this one does not
    return f"{what}: {counted(size, 'node')}" if size else what


def fail_gang(at: Moment, names: Iterable[str]) -> RoundDecision:
    reason = f"lost {', '.join(sorted(names))} (--gang)"
    return RoundDecision((EndJob(Job("failed", at.now, reason)),), reason)
