"""The actions of an agent, as values: `decide.py` returns them, `executor.py` performs them."""

import signal
from collections.abc import Iterator, Mapping

import msgspec

from spotelastic.model.agreement import Proposal
from spotelastic.model.notice import Notice
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous import decision


class Action(msgspec.Struct, frozen=True):
    """What an agent does. What is not local writes to etcd, from `NodeRetries.write_at` on."""


class LocalAction(Action, frozen=True):
    """An action that needs no etcd."""


class DaemonAction(LocalAction, frozen=True):
    """An action that asks the daemon, from `NodeRetries.ask_at` on."""


class StartZygote(LocalAction, frozen=True):
    pass


class StartDaemon(DaemonAction, frozen=True):
    pass


class Register(Action, frozen=True):
    """Register this node; with a new incarnation if `anew`."""

    anew: bool = False
    prepares: bool = False
    """Whether its workers prepare first."""


class Campaign(Action, frozen=True):
    """Try to become the holder."""


class ProbePeers(Action, frozen=True):
    """See whether the daemons of these members of the round are gone."""

    round: Round
    nodes: tuple[str, ...]


class Depose(Action, frozen=True):
    """Take the place of the holder, a node that is gone."""

    node: str


class StepDown(Action, frozen=True):
    """Decide for the others no more: another node does."""


class Lead(Action, frozen=True):
    """Write what this node decided as the holder."""

    actions: tuple[decision.Action, ...]


class KillWorkers(LocalAction, frozen=True):
    signal: int = signal.SIGKILL
    but_failing: bool = False
    """Whether workers that have reported a failure may end by themselves."""


class RestWorkers(LocalAction, frozen=True):
    """Ask the workers to leave their round's group, and to wait for another round."""


class PrepareWorkers(LocalAction, frozen=True):
    """Start workers that come to the beginning of their training beside the round that trains."""

    round: Round


class EnterRound(DaemonAction, frozen=True):
    """Tell workers that rest of the round that they are in now."""

    round: Round
    member: Member


class AskWorkers(LocalAction, frozen=True):
    """Ask workers that are entering a round whether they run."""


class EndRest(LocalAction, frozen=True):
    """Kill workers that rest: they are not to enter another round."""


class ReportNotKept(Action, frozen=True):
    """Report that this node's workers cannot keep the state that the round counts on."""

    round: Round
    why: str = "a worker ended while it waited for the round"


class DumpStacks(LocalAction, frozen=True):
    """Have the workers write the stacks of all their threads."""


class LookAtSteps(DaemonAction, frozen=True):
    """Check whether the workers have executed steps since the last look, to detect a stall."""


class Listen(DaemonAction, frozen=True):
    """Check whether the workers have executed steps, for the line about silent workers."""


class AskWhere(LocalAction, frozen=True):
    """Have silent workers write where they stand. They go on."""


class TellSilence(DaemonAction, frozen=True):
    """Read where silent workers stand, and report it."""


class ReportStall(Action, frozen=True):
    round: Round


class EndRound(DaemonAction, frozen=True):
    """Record what the workers of a round saw, and remove their pages.

    All of them are reaped, or rest.
    """

    rests: bool = False


class Acknowledge(Action, frozen=True):
    round: Round
    ready: bool


class OpenStore(LocalAction, frozen=True):
    round: Round


class KeepStore(LocalAction, frozen=True):
    """Take the store of a proposal that never started for the one that replaces it."""

    round: Round


class StartSpareStore(LocalAction, frozen=True):
    """Start a store for a round to come, so that the round need not wait for it."""


class ServeStore(LocalAction, frozen=True):
    """Open the round store's port.

    All members are ready, so that no worker of an old round lives.
    """


class CloseStore(LocalAction, frozen=True):
    pass


class ClaimStorage(Action, frozen=True):
    round: Round


class FailJob(Action, frozen=True):
    """End the job as failed, unless it has ended: it can never begin."""

    reason: str


class StartWorkers(DaemonAction, frozen=True):
    round: Round
    member: Member


class AdoptEpoch(DaemonAction, frozen=True):
    """Tell the daemon the storage epoch that the round got after it had started."""

    round: Round
    member: Member


class ReportFailure(Action, frozen=True):
    round: Round


class ReportStoreDeath(Action, frozen=True):
    round: Round


class UploadByDeadline(DaemonAction, frozen=True):
    """Upload the newest sealed save before this node is gone (seconds since the epoch)."""

    deadline: float


class FlushUploads(DaemonAction, frozen=True):
    """Wait, on another thread, until everything due is committed."""

    round: str


class ReportFinished(Action, frozen=True):
    round: Round


class AnswerSteps(Action, frozen=True):
    """Vote with the steps of this node's workers.

    `sealed`: all of them have saved at the target, and wait.
    """

    proposal: Proposal
    sealed: bool = False


class SetSaveTarget(Action, frozen=True):
    """Write the proposal's target into the workers' pages, then read their steps, and vote."""

    proposal: Proposal


class Refuse(Action, frozen=True):
    """Vote that the workers of this node cannot agree on a step.

    `plain`: they have no Checkpointer yet.
    """

    proposal: Proposal
    plain: bool = False


class ReleaseWorkers(DaemonAction, frozen=True):
    """Let waiting workers go on: the proposal was withdrawn, or its intervals hold now."""

    proposal: Proposal


class OfferSlots(Action, frozen=True):
    """Publish the snapshots that this node, left out of a round, still holds."""

    round: str


class TellNotice(Action, frozen=True):
    """Record a notice that does not make the node leave."""

    notice: Notice


class BeginDeparture(LocalAction, frozen=True):
    """Let what was announced count from now on: its time has come."""

    notice: Notice


class WriteDrain(Action, frozen=True):
    pass


class TellProgress(Action, frozen=True):
    pass


class Say(LocalAction, frozen=True):
    """Report something, once for each topic."""

    topic: str
    line: str


class TellVersions(Action, frozen=True):
    """Say, and put on record, that nodes of unlike versions are at work; once for each topic."""

    topic: str
    line: str


class TellRestart(Action, frozen=True):
    """Record that this node leaves by itself, and comes back."""


class CheckGpus(LocalAction, frozen=True):
    """Have the GPUs work once, on another thread, and look for EFA."""


class ExamineGpus(LocalAction, frozen=True):
    """Ask nvidia-smi, on another thread, because a worker of this round failed."""

    round: str


class TellFault(Action, frozen=True):
    """Record why this node, which has not joined, does not."""


class TellDevices(Action, frozen=True):
    """Say, and put on record, something about GPUs or the network; once for each topic."""

    topic: str
    line: str
    warns: bool = True
    data: Mapping[str, object] = msgspec.field(default_factory=dict)


class Exit(LocalAction, frozen=True):
    code: int
    reason: str = ""
    """For people, where they cannot know."""


class Wake(msgspec.Struct, frozen=True):
    """Look again at this time. Yielded among actions."""

    at: float


Steps = Iterator[Action | Wake]
"""What is to be done, in this order, and when to look again."""
