"""Pure: the holder's side of the agreement on a save step (docs/protocols.md, Agreement on a step).

Must never happen: a target goes down, or counts as reached before every member has sealed it.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from spotelastic_checkpoints.types import Schedule

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.round import Round
from spotelastic.rendezvous.view import RunState

SMALLEST_MARGIN = 3
LIMIT = 15.0
"""Seconds that a planned change without a deadline waits for its save, of steps that are short."""
SETTLES_WITHIN = 3.0
"""Seconds from the setting of a target in which those who stay may still reach it."""


@dataclass(frozen=True, slots=True)
class AgreementStatus:
    """`proposal` is to be written, if there is one; `over`: the change need not wait any longer,
    `agreed`: because all have saved and wait."""

    reason: str = ""
    wake_at: float | None = None
    proposal: Proposal | None = None
    over: bool = False
    agreed: bool = False


def advance(
    seen: RunState,
    round_: Round,
    reason: str,
    deadline: float,
    now: float,
    new_id: Callable[[], str],
    schedule: Schedule | None = None,
) -> AgreementStatus:
    """The next step towards a save of all members; at the deadline the newest snapshot serves."""
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
    """Until when the save of those who stay is worth waiting for, although the `gone`, which were
    to leave anyway, are no longer heard of: perhaps only their lease was lost. 0: not at all."""
    current = current_of(seen, round_)
    if current is None or not current.target:
        return 0.0
    votes = [vote for vote in votes_on(seen, round_, current) if vote.node not in gone]
    sure = all(current.target in (vote.confirmed, vote.sealed) for vote in votes)
    sealed = all(vote.sealed == current.target for vote in votes)
    if not sure or sealed or len(votes) < len(round_.members) - len(gone):
        return 0.0
    return min(current.deadline, seen.proposal_at + SETTLES_WITHIN)


def time_for_steps(step_time: float) -> float:
    """Seconds that are allowed for the steps up to a target, over what short ones take.

    In whole seconds per step, so that what is measured anew does not move a deadline.
    """
    return 2.0 * SMALLEST_MARGIN * int(step_time)


def current_of(seen: RunState, round_: Round) -> Proposal | None:
    proposal = seen.proposal
    valid = proposal is not None and proposal.round == round_.incarnation
    return proposal if valid and proposal is not None and not proposal.cancelled else None


def votes_on(seen: RunState, round_: Round, proposal: Proposal) -> list[Vote]:
    """Those that are there."""
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
    """Steps ahead that surely lie in the future: what a second takes, and twice as long each time
    that was too short, as it is for agents that hardly get to run; at most half the time left."""
    step_time = min((vote.step_time for vote in votes if vote.step_time > 0), default=1.0)
    seconds = max(1.0, min(2.0**current.raised, (current.deadline - now) / 2))
    return max(SMALLEST_MARGIN, math.ceil(seconds / step_time))


def _overran(vote: Vote, target: int) -> bool:
    """Its workers may have passed the target before they could see it."""
    return target not in (vote.confirmed, vote.sealed) and vote.step > target - 2
