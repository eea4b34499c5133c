"""Decides, for the holder, how the members of a round agree on one step to save at (pure).

Follows "Agreement on a step" in the protocols page. Must never happen: a target goes down, or
counts as reached before every member has sealed it.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints.types import Schedule

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.round import Round
from spotelastic.rendezvous.duties.answers import SURE
from spotelastic.rendezvous.view import RunState

SMALLEST_MARGIN = 3
LIMIT = 15.0
"""Seconds that a planned change without a deadline waits for its save. Long steps add to it."""
ASKS_AGAIN = 30.0
"""Seconds until workers that have left their Checkpointer are asked whether they have another."""
SETTLES_WITHIN = 3.0
"""Seconds that the remaining members have to reach a target after it was set."""


@dataclass(frozen=True, slots=True)
class AgreementStatus:
    """How far the agreement is, and what the holder does next about it."""

    reason: str = ""
    wake_at: float | None = None
    proposal: Proposal | None = None
    """The proposal to write now, if any."""
    over: bool = False
    """Whether the change need not wait any longer."""
    agreed: bool = False
    """Whether every member has sealed the target and waits at it."""


def advance(
    seen: RunState,
    round_: Round,
    reason: str,
    deadline: float,
    now: float,
    new_id: Callable[[], str],
    schedule: Schedule | None = None,
) -> AgreementStatus:
    """Return the next step towards a save by all members.

    After the deadline the change goes on with the newest complete snapshot.
    """
    current = current_of(seen, round_)
    if current is None:
        asked = Proposal(new_id(), round_.incarnation, reason, deadline=deadline, schedule=schedule)
        return AgreementStatus(f"asks for steps: {reason}", deadline, asked)
    votes = votes_on(seen, round_, current)
    if now >= current.deadline or any(vote.refused for vote in votes):
        return AgreementStatus("goes on without an agreement", over=True)
    if deadline < current.deadline - 0.5:
        return AgreementStatus("less time is left", deadline, replace(current, deadline=deadline))
    if len(votes) < len(round_.members):
        return AgreementStatus("waits for steps", current.deadline)
    if current.target and all(vote.sealed == current.target for vote in votes):
        return AgreementStatus(f"all have saved step {current.target}", over=True, agreed=True)
    if current.target and not any(_overran(vote, current.target) for vote in votes):
        return AgreementStatus(f"saves at step {current.target}", current.deadline)
    raised = _raised(current, votes, now)
    return AgreementStatus(f"saves at step {raised.target}", current.deadline, raised)


def settles_at(seen: RunState, round_: Round, gone: Collection[str]) -> float:
    """Return until when to wait for the remaining members' save, or 0 for not at all.

    `gone` are draining nodes whose leases ran out before the target. They may still train.
    """
    current = current_of(seen, round_)
    if current is None or not current.target:
        return 0.0
    votes = [vote for vote in votes_on(seen, round_, current) if vote.node not in gone]
    sure = all(current.target in (vote.confirmed, vote.sealed) for vote in votes)
    sealed = all(vote.sealed == current.target for vote in votes)
    if not sure or sealed or len(votes) < len(round_.members) - len(gone):
        return 0.0
    return min(current.deadline, seen.proposal_at + SETTLES_WITHIN)


def have_left(seen: RunState, round_: Round) -> bool:
    """Whether workers of a member have left their Checkpointer: what follows would run twice."""
    current = current_of(seen, round_)
    votes = votes_on(seen, round_, current) if current is not None else []
    return any(vote.refused and not vote.plain for vote in votes)


def time_for_steps(step_time: float) -> float:
    """Return the seconds that long steps add to the time allowed for reaching a target.

    Counts whole seconds per step, so that a new measurement does not move a deadline.
    """
    return 2.0 * SMALLEST_MARGIN * int(step_time)


def current_of(seen: RunState, round_: Round) -> Proposal | None:
    proposal = seen.proposal
    valid = proposal is not None and proposal.round == round_.incarnation
    return proposal if valid and proposal is not None and not proposal.cancelled else None


def votes_on(seen: RunState, round_: Round, proposal: Proposal) -> list[Vote]:
    """Return the votes on `proposal` that have arrived from members of the round."""
    votes = (seen.votes.get(member.node) for member in round_.members)
    return [vote for vote in votes if vote is not None and vote.proposal == proposal.id]


def _raised(current: Proposal, votes: Sequence[Vote], now: float) -> Proposal:
    target = max(vote.step for vote in votes) + _margin(current, votes, now)
    return replace(
        current,
        target=max(target, current.target + 1),
        raised=current.raised + bool(current.target),
    )


def _margin(current: Proposal, votes: Sequence[Vote], now: float) -> int:
    """Return how many steps ahead a target surely lies in the future.

    Starts with one second's worth and doubles each time that was too short, as it is for agents
    that hardly get to run. Never takes more than half the time left.
    """
    step_time = min((vote.step_time for vote in votes if vote.step_time > 0), default=1.0)
    seconds = max(1.0, min(2.0**current.raised, (current.deadline - now) / 2))
    return max(SMALLEST_MARGIN, math.ceil(seconds / step_time))


def _overran(vote: Vote, target: int) -> bool:
    """Whether the member's workers may have passed the target before they could see it."""
    return target not in (vote.confirmed, vote.sealed) and vote.step > target - SURE
