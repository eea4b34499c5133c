"""The actions of an agent, as values: `decide.py` returns them, `executor.py` performs them."""

import signal
from dataclasses import dataclass

from spotelastic.model.agreement import Proposal
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous import decision


@dataclass(frozen=True, slots=True)
class StartZygote:
    pass


@dataclass(frozen=True, slots=True)
class StartDaemon:
    pass


@dataclass(frozen=True, slots=True)
class Register:
    """Make this node known, with a new incarnation if `anew`."""

    anew: bool = False


@dataclass(frozen=True, slots=True)
class Campaign:
    """Try to become the holder."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Write what the holder decided."""

    actions: tuple[decision.Action, ...]


@dataclass(frozen=True, slots=True)
class KillWorkers:
    signal: int = signal.SIGKILL
    but_failing: bool = False
    """Those that have told of their failure have time to end by themselves."""


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Have the workers write the stacks of their threads."""


@dataclass(frozen=True, slots=True)
class LookAtSteps:
    """Whether the workers have executed steps since the last look."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Whether workers have executed steps, for people."""


@dataclass(frozen=True, slots=True)
class AskWhere:
    """Have workers that are quiet write where they stand; they go on."""


@dataclass(frozen=True, slots=True)
class TellSilence:
    """Read where they stand, and tell people."""


@dataclass(frozen=True, slots=True)
class ReportStall:
    round: Round


@dataclass(frozen=True, slots=True)
class EndRound:
    """All workers are reaped: take down what they saw, and their pages."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    round: Round
    ready: bool


@dataclass(frozen=True, slots=True)
class OpenStore:
    round: Round


@dataclass(frozen=True, slots=True)
class ServeStore:
    """All are ready, so that no worker of an old round lives: the store's port opens."""


@dataclass(frozen=True, slots=True)
class CloseStore:
    pass


@dataclass(frozen=True, slots=True)
class ClaimStorage:
    round: Round


@dataclass(frozen=True, slots=True)
class StartWorkers:
    round: Round
    member: Member


@dataclass(frozen=True, slots=True)
class AdoptEpoch:
    """The round got its storage epoch after it had started."""

    round: Round
    member: Member


@dataclass(frozen=True, slots=True)
class ReportFailure:
    round: Round


@dataclass(frozen=True, slots=True)
class ReportStoreDeath:
    round: Round


@dataclass(frozen=True, slots=True)
class UploadByDeadline:
    """Upload the newest sealed save: this node will be gone then (epoch seconds)."""

    deadline: float


@dataclass(frozen=True, slots=True)
class FlushUploads:
    """Wait, elsewhere, until what is due is committed."""

    round: str


@dataclass(frozen=True, slots=True)
class ReportFinished:
    round: Round


@dataclass(frozen=True, slots=True)
class AnswerSteps:
    """Vote with the steps of this node's workers."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class SetSaveTarget:
    """Write the proposal's target into the workers' pages, then read their steps, and vote."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class VoteSealed:
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Refuse:
    """The workers of this node cannot agree on a step. `plain`: they have no Checkpointer yet."""

    proposal: Proposal
    plain: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseWorkers:
    """The proposal was withdrawn, or its intervals hold now: workers that wait go on."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class OfferSlots:
    """Publish what this node, left out of a round, still holds."""

    round: str


@dataclass(frozen=True, slots=True)
class WriteDrain:
    pass


@dataclass(frozen=True, slots=True)
class TellProgress:
    pass


@dataclass(frozen=True, slots=True)
class Say:
    """Tell people, once for each topic."""

    topic: str
    line: str


@dataclass(frozen=True, slots=True)
class TellRestart:
    """Put on record that this node goes by itself, and comes back."""


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    reason: str = ""
    """For people, where they cannot know."""


Action = (
    StartZygote
    | StartDaemon
    | Register
    | Campaign
    | Lead
    | KillWorkers
    | DumpStacks
    | LookAtSteps
    | Listen
    | AskWhere
    | TellSilence
    | ReportStall
    | EndRound
    | Acknowledge
    | OpenStore
    | ServeStore
    | CloseStore
    | ClaimStorage
    | StartWorkers
    | AdoptEpoch
    | ReportFailure
    | ReportStoreDeath
    | UploadByDeadline
    | FlushUploads
    | ReportFinished
    | AnswerSteps
    | SetSaveTarget
    | VoteSealed
    | Refuse
    | ReleaseWorkers
    | OfferSlots
    | WriteDrain
    | TellProgress
    | Say
    | TellRestart
    | Exit
)


@dataclass(frozen=True, slots=True)
class Wake:
    """Yielded among actions: look again at this time."""

    at: float
