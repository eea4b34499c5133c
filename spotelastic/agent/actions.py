"""The actions of an agent, as values: `decide.py` returns them, `executor.py` performs them."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from spotelastic.model.agreement import Proposal
from spotelastic.model.notice import Notice
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
    """Register this node; with a new incarnation if `anew`."""

    anew: bool = False
    prepares: bool = False
    """Whether its workers prepare first."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Try to become the holder."""


@dataclass(frozen=True, slots=True)
class ProbePeers:
    """See whether the daemons of these members of the round are gone."""

    round: Round
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Depose:
    """Take the place of the holder, a node that is gone."""

    node: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """Decide for the others no more: another node does."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Write what this node decided as the holder."""

    actions: tuple[decision.Action, ...]


@dataclass(frozen=True, slots=True)
class KillWorkers:
    signal: int = signal.SIGKILL
    but_failing: bool = False
    """Whether workers that have reported a failure may end by themselves."""


@dataclass(frozen=True, slots=True)
class RestWorkers:
    """Ask the workers to leave their round's group, and to wait for another round."""


@dataclass(frozen=True, slots=True)
class PrepareWorkers:
    """Start workers that come to the beginning of their training beside the round that trains."""

    round: Round


@dataclass(frozen=True, slots=True)
class EnterRound:
    """Tell workers that rest of the round that they are in now."""

    round: Round
    member: Member


@dataclass(frozen=True, slots=True)
class AskWorkers:
    """Ask workers that are entering a round whether they run."""


@dataclass(frozen=True, slots=True)
class EndRest:
    """Kill workers that rest: they are not to enter another round."""


@dataclass(frozen=True, slots=True)
class ReportNotKept:
    """Report that this node's workers cannot keep the state that the round counts on."""

    round: Round
    why: str = "a worker ended while it waited for the round"


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Have the workers write the stacks of all their threads."""


@dataclass(frozen=True, slots=True)
class LookAtSteps:
    """Check whether the workers have executed steps since the last look, to detect a stall."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Check whether the workers have executed steps, for the line about silent workers."""


@dataclass(frozen=True, slots=True)
class AskWhere:
    """Have silent workers write where they stand. They go on."""


@dataclass(frozen=True, slots=True)
class TellSilence:
    """Read where silent workers stand, and report it."""


@dataclass(frozen=True, slots=True)
class ReportStall:
    round: Round


@dataclass(frozen=True, slots=True)
class EndRound:
    """Record what the workers of a round saw, and remove their pages.

    All of them are reaped, or rest.
    """

    rests: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledge:
    round: Round
    ready: bool


@dataclass(frozen=True, slots=True)
class OpenStore:
    round: Round


@dataclass(frozen=True, slots=True)
class KeepStore:
    """Take the store of a proposal that never started for the one that replaces it."""

    round: Round


@dataclass(frozen=True, slots=True)
class StartSpareStore:
    """Start a store for a round to come, so that the round need not wait for it."""


@dataclass(frozen=True, slots=True)
class ServeStore:
    """Open the round store's port.

    All members are ready, so that no worker of an old round lives.
    """


@dataclass(frozen=True, slots=True)
class CloseStore:
    pass


@dataclass(frozen=True, slots=True)
class ClaimStorage:
    round: Round


@dataclass(frozen=True, slots=True)
class FailJob:
    """End the job as failed, unless it has ended: it can never begin."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartWorkers:
    round: Round
    member: Member


@dataclass(frozen=True, slots=True)
class AdoptEpoch:
    """Tell the daemon the storage epoch that the round got after it had started."""

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
    """Upload the newest sealed save before this node is gone (seconds since the epoch)."""

    deadline: float


@dataclass(frozen=True, slots=True)
class FlushUploads:
    """Wait, on another thread, until everything due is committed."""

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
    """Vote that the workers of this node cannot agree on a step.

    `plain`: they have no Checkpointer yet.
    """

    proposal: Proposal
    plain: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseWorkers:
    """Let waiting workers go on: the proposal was withdrawn, or its intervals hold now."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class OfferSlots:
    """Publish the snapshots that this node, left out of a round, still holds."""

    round: str


@dataclass(frozen=True, slots=True)
class TellNotice:
    """Record a notice that does not make the node leave."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class BeginDeparture:
    """Let what was announced count from now on: its time has come."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class WriteDrain:
    pass


@dataclass(frozen=True, slots=True)
class TellProgress:
    pass


@dataclass(frozen=True, slots=True)
class Say:
    """Report something, once for each topic."""

    topic: str
    line: str


@dataclass(frozen=True, slots=True)
class TellVersions:
    """Say, and put on record, that nodes of unlike versions are at work; once for each topic."""

    topic: str
    line: str


@dataclass(frozen=True, slots=True)
class TellRestart:
    """Record that this node leaves by itself, and comes back."""


@dataclass(frozen=True, slots=True)
class CheckGpus:
    """Have the GPUs work once, on another thread, and look for EFA."""


@dataclass(frozen=True, slots=True)
class ExamineGpus:
    """Ask nvidia-smi, on another thread, because a worker of this round failed."""

    round: str


@dataclass(frozen=True, slots=True)
class TellFault:
    """Record why this node, which has not joined, does not."""


@dataclass(frozen=True, slots=True)
class TellDevices:
    """Say, and put on record, something about GPUs or the network; once for each topic."""

    topic: str
    line: str
    warns: bool = True
    data: Mapping[str, object] = field(default_factory=dict)


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
    | ProbePeers
    | Depose
    | StepDown
    | Lead
    | KillWorkers
    | RestWorkers
    | PrepareWorkers
    | EnterRound
    | AskWorkers
    | EndRest
    | ReportNotKept
    | DumpStacks
    | LookAtSteps
    | Listen
    | AskWhere
    | TellSilence
    | ReportStall
    | EndRound
    | Acknowledge
    | OpenStore
    | KeepStore
    | StartSpareStore
    | ServeStore
    | CloseStore
    | ClaimStorage
    | FailJob
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
    | TellNotice
    | BeginDeparture
    | WriteDrain
    | TellProgress
    | Say
    | TellRestart
    | TellVersions
    | CheckGpus
    | ExamineGpus
    | TellFault
    | TellDevices
    | Exit
)


@dataclass(frozen=True, slots=True)
class Wake:
    """Look again at this time. Yielded among actions."""

    at: float
