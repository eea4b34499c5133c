"""Values that the holder's rules about rounds take (`Moment`) and return (`RoundDecision`)."""

from collections.abc import Callable
from dataclasses import dataclass

from spotelastic.model.agreement import Proposal
from spotelastic.model.job import Job, Settings
from spotelastic.model.progress import SlowNode
from spotelastic.model.round import Round
from spotelastic.rendezvous.view import RunState


@dataclass(frozen=True, slots=True)
class WriteRound:
    """Replace the current round."""

    round: Round


@dataclass(frozen=True, slots=True)
class CloseRound:
    """Keep the started `round`, which ends, as history."""

    round: Round


@dataclass(frozen=True, slots=True)
class CompleteHistory:
    """Add to a round's history record what its members saw of it.

    Times are in seconds since the epoch, 0 where unknown.
    """

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


@dataclass(frozen=True, slots=True)
class NameSlow:
    """Put on record that a node keeps the others waiting."""

    slow: SlowNode


@dataclass(frozen=True, slots=True)
class ClearSlow:
    """Put on record that it no longer does, or is gone."""

    slow: SlowNode
    reason: str


Action = WriteRound | CloseRound | CompleteHistory | WriteProposal | EndJob | NameSlow | ClearSlow


@dataclass(frozen=True, slots=True)
class RoundDecision:
    """What the holder does next about the round."""

    actions: tuple[Action, ...] = ()
    reason: str = ""
    """One line for people."""
    wake_at: float | None = None
    """When to decide again if nothing happens; None: no need."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What every rule is given: the run as observed, its settings, the time, and fresh names."""

    seen: RunState
    settings: Settings
    now: float
    new_id: Callable[[], str]
