"""What the holder can decide, as values, and what every rule about rounds is given."""

from collections.abc import Callable
from dataclasses import dataclass

from spotelastic.model.agreement import Proposal
from spotelastic.model.job import Job, Settings
from spotelastic.model.round import Round
from spotelastic.rendezvous.view import RunState


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
class RoundDecision:
    """What to do now, why (one line for people), and when to look again if nothing happens."""

    actions: tuple[Action, ...] = ()
    reason: str = ""
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """What every rule below is given: the run as seen, its settings, the time, fresh names."""

    seen: RunState
    settings: Settings
    now: float
    new_id: Callable[[], str]
