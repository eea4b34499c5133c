"""Everything that changes what an agent knows of its own node, as frozen values.

`observe.py` folds them. They have in them whatever it could not know: times, ids, and what others
have answered. Some come from threads and processes beside the agent, the others tell what an action
has done. The event log has each on a line.
"""

import msgspec
from spotelastic_checkpoints.messages import DaemonEvent
from spotelastic_checkpoints.types import Commit, WorkerStep

from spotelastic.agent.state.values import RoundStore
from spotelastic.model.agreement import Vote
from spotelastic.model.gpu import GpuFault
from spotelastic.model.in_place import Standing
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.model.progress import GpuUse
from spotelastic.model.round import RoundEnd
from spotelastic.store.port import Compare


class AgentEvent(msgspec.Struct, frozen=True, tag=True):
    """Base of all events of an agent."""


class WorkersEvent(AgentEvent, frozen=True):
    """Base of those that change nothing but what is known of the workers."""


class HealthEvent(AgentEvent, frozen=True):
    """Base of those that tell of the node's GPUs."""


# -- the node's processes -------------------------------------------------------------------------


class Exited(AgentEvent, frozen=True):
    """A child of the zygote ended; `code` is negative for a signal.

    If it is not `gone`, something that it started still lives. The end of that is reported again.
    """

    id: str
    code: int
    gone: bool = True


class WorkerFailing(WorkersEvent, frozen=True):
    """A worker has reported a failure, and will end by itself with this exit code."""

    id: str
    code: int


class ZygoteGone(AgentEvent, frozen=True):
    """The zygote and all that it had started have ended."""


class ZygoteWarm(AgentEvent, frozen=True):
    """The zygote is ready to fork, and has told what software this node has."""

    fingerprint: Fingerprint


class Claimed(AgentEvent, frozen=True):
    """The answer to a claim; epoch 0: it failed, if `owned` because another run has the storage."""

    round: str
    epoch: int
    commit: Commit | None
    error: str = ""
    run_id: str = ""
    owned: bool = False


class Flushed(AgentEvent, frozen=True):
    round: str


class WorkerListens(WorkersEvent, frozen=True):
    """A worker can rest from now on."""

    round: str
    local_rank: int


class WorkerRests(WorkersEvent, frozen=True):
    """A worker has left its round's group, and waits for another round."""

    round: str
    local_rank: int
    standing: Standing
    broken: str = ""
    """Why it rests without having been asked."""
    traceback: str = ""


class WorkerPresent(WorkersEvent, frozen=True):
    """A worker has told that it runs, and knows of this round."""

    round: str
    local_rank: int
    saves: bool = False
    """Whether it saves what it has before it rests, and has told that by itself."""


class WorkersAsked(WorkersEvent, frozen=True):
    """Workers that are entering a round were asked whether they run."""


class WorkerDeaf(WorkersEvent, frozen=True):
    """A worker has closed its connection: it can rest no more."""

    local_rank: int


# -- what else happens to the node ----------------------------------------------------------------


class AgentStarted(AgentEvent, frozen=True):
    stays: bool = False
    checks: bool = False
    """Whether the node's GPUs and network are checked before it joins."""


class Noticed(AgentEvent, frozen=True):
    notice: Notice


class NoticeTold(AgentEvent, frozen=True):
    """A notice was recorded that does not make the node leave."""

    notice: Notice


class Signalled(AgentEvent, frozen=True):
    signal: int
    killed_after: float = 0.0
    """Seconds after which the node is killed if it is still there; 0: it is not."""


class SessionLost(AgentEvent, frozen=True):
    reason: str


class NodesRead(AgentEvent, frozen=True):
    """The watch on the nodes' own keys has delivered something, so that the holder knows them."""


class StoreWentBack(AgentEvent, frozen=True):
    """Etcd was emptied or set back, and knows less than this node, which is new to it."""


# -- the node's GPUs ------------------------------------------------------------------------------


class GpuCheckStarted(HealthEvent, frozen=True):
    pass


class GpusChecked(HealthEvent, frozen=True):
    """The check before joining is over."""

    gpus: int
    fault: GpuFault | None
    efa: int = 0
    nccl_plugin: bool = False


class ExaminationStarted(HealthEvent, frozen=True):
    """nvidia-smi was asked, because a worker of this round failed."""

    round: str


class GpusExamined(HealthEvent, frozen=True):
    fault: GpuFault | None


class GpusMeasured(HealthEvent, frozen=True):
    """nvidia-smi has told how busy the GPUs are."""

    use: GpuUse | None


class XidSeen(HealthEvent, frozen=True):
    """The kernel has told of a GPU. `verdict`: sick, suspect or script; empty: not known."""

    fault: GpuFault
    verdict: str = ""


# -- what actions did to the node's processes -----------------------------------------------------


class ZygoteStarted(AgentEvent, frozen=True):
    pass


class DaemonStarted(AgentEvent, frozen=True):
    address: str


class StoreOpened(AgentEvent, frozen=True):
    store: RoundStore


class SpareStoreStarted(AgentEvent, frozen=True):
    """A store was started for a round to come. `id` empty: it was not."""

    id: str
    never: bool = False
    """Whether none ever is."""


class StoreServes(AgentEvent, frozen=True):
    pass


class StoreClosed(AgentEvent, frozen=True):
    pass


class WorkersStarted(AgentEvent, frozen=True):
    round: str
    number: int
    first_rank: int
    epoch: int
    alive: frozenset[str]
    resumed: int


class EpochAdopted(WorkersEvent, frozen=True):
    epoch: int


class WorkersKilled(WorkersEvent, frozen=True):
    """The workers were sent a signal, except those that have failed and may end by themselves."""

    spared: frozenset[str] = frozenset()
    kill_at: float | None = None
    """When SIGKILL follows; None: that is what was sent."""
    ended: frozenset[str] = frozenset()
    """Those that had ended before, by themselves."""


class RestRequested(AgentEvent, frozen=True):
    """The workers were asked to leave their group and rest."""


class WorkersEntered(AgentEvent, frozen=True):
    """Workers that rested were told of the round that they are in now."""

    round: str
    number: int
    first_rank: int
    epoch: int
    resumed: int


class RestOver(AgentEvent, frozen=True):
    """Workers that rest are not to enter another round, and were killed."""


class StacksRequested(WorkersEvent, frozen=True):
    """Stalled workers were asked for their stacks."""


class StepsRead(WorkersEvent, frozen=True):
    """The steps on the workers' pages, read to detect a stall."""

    workers: tuple[WorkerStep, ...]


class StepsHeard(WorkersEvent, frozen=True):
    """The steps on the workers' pages, read for the line about silent workers."""

    workers: tuple[WorkerStep, ...]


class StandingRequested(WorkersEvent, frozen=True):
    """Silent workers were asked where they stand."""


class RoundEnded(AgentEvent, frozen=True):
    """All workers of a round are reaped, or rest.

    `end`: what they saw; None if the daemon cannot tell.
    """

    end: RoundEnd | None
    rests: bool = False


class ClaimStarted(AgentEvent, frozen=True):
    """The storage was claimed for a round.

    Not `pending`: the round is no longer the current one, so that nothing was asked.
    """

    round: str
    pending: bool = True


class UploadHurried(AgentEvent, frozen=True):
    """The daemon was told when this node will be gone."""

    deadline: float


class FlushStarted(AgentEvent, frozen=True):
    round: str


class DaemonRefused(AgentEvent, frozen=True):
    """A daemon that lives has refused an action. `topic` names that for people."""

    topic: str
    retry_at: float


# -- what actions did in etcd ---------------------------------------------------------------------


class Registered(AgentEvent, frozen=True):
    """The node is in etcd; `renewed` if it was before, under another lease."""

    node: Node
    renewed: bool = False


class RegistrationRefused(AgentEvent, frozen=True):
    """Another node, that may be gone already, has what this one asks for."""

    retry_at: float


class BecameHolder(AgentEvent, frozen=True):
    leadership: Compare


class HolderDeposed(AgentEvent, frozen=True):
    """Another node is the holder in place of this one."""


class PeersProbed(AgentEvent, frozen=True):
    """It was looked whether the daemons of these members of a round answer."""

    round: str
    nodes: frozenset[str]
    refusing: frozenset[str]
    """Those whose machines live, and at whose ports nobody listens."""


class DecisionWritten(AgentEvent, frozen=True):
    """The holder has written a decision, or has found that its premises had changed."""

    after: int
    again_at: float


class WriteFailed(AgentEvent, frozen=True):
    """A write to etcd had no answer, or another node's came first."""

    retry_at: float


class DrainWritten(AgentEvent, frozen=True):
    pass


class Acknowledged(AgentEvent, frozen=True):
    round: str
    phase: str
    epoch: int
    rests: bool = False
    """Whether the answer said that this node's workers rest."""


class SlotsOffered(AgentEvent, frozen=True):
    round: str


class Voted(AgentEvent, frozen=True):
    vote: Vote


class WorkersReleased(AgentEvent, frozen=True):
    """Workers that waited at a target go on: the vote counts no more."""


class FailureReported(WorkersEvent, frozen=True):
    broken: bool = False
    """Whether no more was reported than that a collective has failed."""


class SilenceReported(WorkersEvent, frozen=True):
    line: str


class FinishReported(AgentEvent, frozen=True):
    round: str


class ProgressReported(AgentEvent, frozen=True):
    step: int
    step_time: float
    commit: Commit | None


class Said(AgentEvent, frozen=True):
    """Something was reported to people, which is done once for each topic."""

    topic: str


LocalEvent = AgentEvent | DaemonEvent
"""Whatever an agent folds: what its daemon says, too."""
