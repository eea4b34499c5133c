"""Folds events into what an agent knows of its own node: one immutable value (pure).

Together with `rendezvous.view.RunState` (the run, as etcd shows it) this is all that `decide` sees.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spotelastic_checkpoints.types import Commit, WorkerStep

from spotelastic.agent.silence import Silence
from spotelastic.agent.workers.pool import Exited, Warm, WorkerFailing, ZygoteGone
from spotelastic.model.agreement import Vote
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.model.progress import Point
from spotelastic.model.round import RoundEnd
from spotelastic.rendezvous import agreement
from spotelastic.store.election import Leadership

POINTS_KEPT = 512
LEAVE_WITHIN = 10.0
"""Seconds that a node which was asked to end gives the others to agree on a save. Long steps add to
it.
"""
GONE_WITHIN = 30.0
"""Seconds after SIGKILL in which a process ends, unless a driver or a file system keeps it. A GPU
takes a few to free its memory.
"""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker of this node that ended by itself, or reported a failure and is about to."""

    local_rank: int
    code: int
    at: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How far the workers of this node were at the last look.

    It counts looks instead of measuring time, so that a jump of the clock stalls nothing.
    """

    looked_at: float = 0.0
    steps: tuple[int, ...] = ()
    unchanged: int = 0
    """Looks in a row that found no new step, although one was expected."""
    behind: int = 0
    """Local rank of the slowest worker."""
    step: int = 0
    step_at: float = 0.0
    """When that worker executed its last step."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that this node runs, until they are reaped."""

    round: str
    number: int
    first_rank: int
    epoch: int
    started_at: float
    alive: frozenset[str]
    """Names of the workers that have not been reaped: `<round>/<local rank>`."""
    exits: tuple[WorkerExit, ...] = ()
    killed: bool = False
    """Whether this agent is ending them, so that their exits mean nothing."""
    kill_at: float = math.inf
    """When workers that survived SIGTERM get SIGKILL."""
    gone_by: float = math.inf
    """When a process that survived SIGKILL counts as stuck."""
    pace: Pace = Pace()
    dumped_at: float = 0.0
    """When they were asked for their stacks, because a node has stalled; 0: they were not."""
    attached: bool = False
    """Whether one of them has entered its Checkpointer."""
    left: bool = False
    """Whether one of them has left its Checkpointer, or will never have one."""
    waiting_at: int = 0
    """The agreed step at which all of them have sealed and wait."""
    silence: Silence = Silence()
    failing: frozenset[str] = frozenset()
    """Workers that have reported a failure, and may end by themselves."""
    failed: bool = False
    """Whether a failure of theirs has been reported."""
    resumed: int = 0
    """The step that they resume from. A page shows less before its worker has restored."""


@dataclass(frozen=True, slots=True)
class RoundStore:
    """The TCPStore process that this node runs for a round."""

    round: str
    id: str
    address: str
    dead: bool = False
    serves: bool = True
    """Whether its port is open. With a given port it is bound first, and opens when the round
    starts.
    """


@dataclass(frozen=True, slots=True)
class StorageClaim:
    """A claim of the storage for a round. `epoch` 0: not answered, or failed."""

    round: str
    asked_at: float
    pending: bool = True
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """What an agent knows of its own node."""

    node: Node | None = None
    """The node as registered, or as it will be under a new lease."""
    fingerprint: Fingerprint | None = None
    """The node's software; known once the zygote is warm."""
    zygote: bool = False
    daemon: str = ""
    """host:port of the running daemon; empty while there is none."""
    registered: bool = False
    leadership: Leadership | None = None
    lead_after: int = 0
    """Store revision that must be seen before the holder decides again."""
    lead_at: float = 0.0
    """When the holder decides again anyway."""
    nodes_seen: bool = False
    """Whether the holder's own branch of etcd has been read."""
    refused_at: float = 0.0
    """Since when this node may not join, because of another node that may be gone already."""
    write_at: float = 0.0
    """No write to etcd before this time: it was unavailable."""
    ask_at: float = 0.0
    """No request to the daemon before this time: it has refused one."""
    workers: Workers | None = None
    store: RoundStore | None = None
    claim: StorageClaim | None = None
    outrun: int = 0
    """The newest storage epoch of this node that a later claim has fenced."""
    commit: Commit | None = None
    acknowledged: tuple[str, str, int] = ("", "", 0)
    """(round, phase, epoch) of the last acknowledgement."""
    vote: Vote | None = None
    end: RoundEnd | None = None
    """The end of the last round that this node took part in."""
    offered: str = ""
    """The round for which this node, left out of it, has published its snapshots."""
    flushing: str = ""
    flushed: str = ""
    finished: str = ""
    """The round for which the success of all workers of this node was recorded."""
    finished_at: float = 0.0
    stays: bool = False
    """Whether this node serves the others until the job has ended, even when its own part is
    done.
    """
    said: frozenset[str] = frozenset()
    """Topics that have been reported."""
    notice: Notice | None = None
    drained: bool = False
    """Whether the notice has been written as a drain."""
    hurried: float = math.inf
    """The time at which this node will be gone, as the daemon was told."""
    leaving: int = 0
    """The signal that asked the agent to end; 0: none did."""
    left: bool = False
    """Whether everything due before leaving has been uploaded."""
    points: tuple[Point, ...] = field(default=())
    step: int = 0
    told_at: float = 0.0
    """When progress was last published."""
    told_step: int = 0
    step_time: float = 0.0
    """Seconds per step as last published; 0: not measured yet."""
    told_commit: Commit | None = None
    """The newest commit that was published with its progress."""


# -- events beside those of the pool and the daemon ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Noticed:
    notice: Notice


@dataclass(frozen=True, slots=True)
class SessionLost:
    reason: str


@dataclass(frozen=True, slots=True)
class Signalled:
    signal: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim; epoch 0: it failed."""

    round: str
    epoch: int
    commit: Commit | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class EpochSuperseded:
    """A later claim has fenced this node's storage epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Flushed:
    round: str


@dataclass(frozen=True, slots=True)
class DaemonGone:
    pass


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    pass


@dataclass(frozen=True, slots=True)
class SaveSealed:
    step: int
    waiting: bool


@dataclass(frozen=True, slots=True)
class LeftCheckpointer:
    pass


@dataclass(frozen=True, slots=True)
class Stepped:
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class CommitSeen:
    commit: Commit
    at: float


LocalEvent = (
    Warm
    | Exited
    | WorkerFailing
    | ZygoteGone
    | Noticed
    | SessionLost
    | Signalled
    | Claimed
    | EpochSuperseded
    | Flushed
    | DaemonGone
    | WorkerAttached
    | SaveSealed
    | LeftCheckpointer
    | Stepped
    | CommitSeen
)


def observe(local: NodeState, event: LocalEvent, now: float) -> NodeState:
    """Returns the node's state after `event`."""
    match event:
        case Exited() | WorkerFailing():
            return _ends(local, event, now)
        case ZygoteGone():
            return replace(local, zygote=False)
        case Noticed(notice):
            return _noticed(local, notice)
        case SessionLost():
            return replace(
                local,
                registered=False,
                leadership=None,
                nodes_seen=False,
                acknowledged=("", "", 0),  # went with the lease
            )
        case Signalled(sig):
            return _asked_to_leave(local, sig, now)
        case Claimed():
            return _claimed(local, event)
        case EpochSuperseded(epoch):
            return replace(local, outrun=max(epoch, local.outrun))
        case Flushed(round_):
            return replace(local, flushed=round_, left=local.left or bool(local.leaving))
        case DaemonGone():
            return replace(local, daemon="")
        case Stepped(points):
            kept = (*local.points, *points)[-POINTS_KEPT:]
            return replace(local, points=kept, step=points[-1].step if points else local.step)
        case CommitSeen(commit, _):
            newest = max(commit, local.commit or commit, key=lambda c: (c.epoch, c.step))
            return replace(local, commit=newest)
        case WorkerAttached() | SaveSealed() | LeftCheckpointer():
            return _workers_said(local, event)
    return local


def forgotten(local: NodeState) -> NodeState:
    """Returns the state of a node that knows more than etcd, and is therefore new to it.

    Its workers go on until the next round of the new history, which resumes from the newest commit.
    """
    return replace(
        local, node=None, registered=False, leadership=None, nodes_seen=False, claim=None, vote=None
    )


def look(pace: Pace, workers: Sequence[WorkerStep], now: float) -> Pace:
    """Returns `pace` after a look at the workers' pages.

    No step is expected before the first one, and while one of the workers is kept waiting on
    purpose.
    """
    steps = tuple(worker.step for worker in workers)
    expected = any(w.first_step_at for w in workers) and not any(w.waiting for w in workers)
    behind = min(workers, key=lambda w: (w.step, w.last_step_at))
    unchanged = pace.unchanged + 1 if expected and steps == pace.steps else 0
    return Pace(now, steps, unchanged, behind.local_rank, behind.step, behind.last_step_at)


def _ends(local: NodeState, event: Exited | WorkerFailing, now: float) -> NodeState:
    if isinstance(event, WorkerFailing):
        return _failing(local, event, now)
    if local.store is not None and local.store.id == event.id:
        return replace(local, store=replace(local.store, dead=True))
    workers = local.workers
    if workers is None or event.id not in workers.alive:
        return local
    rank, exits = int(event.id.rpartition("/")[2]), workers.exits
    if not workers.killed and all(exit_.local_rank != rank for exit_ in exits):
        exits = (*exits, WorkerExit(rank, event.code, now))
    if event.gone:
        return replace(
            local, workers=replace(workers, alive=workers.alive - {event.id}, exits=exits)
        )
    # What it left behind is killed, unless it was asked to end and has time left for that.
    gone_by = min(workers.gone_by, now + GONE_WITHIN) if workers.kill_at == math.inf else math.inf
    return replace(local, workers=replace(workers, exits=exits, gone_by=gone_by))


def _failing(local: NodeState, event: WorkerFailing, now: float) -> NodeState:
    """Records that a worker has reported a failure. It is alive until its end is reported."""
    workers = local.workers
    if workers is None or event.id not in workers.alive or workers.killed:
        return local
    exits, rank = workers.exits, int(event.id.rpartition("/")[2])
    if all(exit_.local_rank != rank for exit_ in exits):
        exits = (*exits, WorkerExit(rank, event.code, now))
    failing = workers.failing | {event.id}
    return replace(local, workers=replace(workers, exits=exits, failing=failing))


def _asked_to_leave(local: NodeState, sig: int, now: float) -> NodeState:
    local = replace(local, leaving=sig)
    node = local.node.id if local.node is not None else ""
    deadline = now + LEAVE_WITHIN + agreement.time_for_steps(local.step_time)
    return _noticed(local, Notice(InterruptionKind.LEAVE, node, "signal", now, now, deadline))


def _noticed(local: NodeState, notice: Notice) -> NodeState:
    """Records a notice. The first one counts, unless a later one leaves less time; one that does
    not drain is only a hint.
    """
    current = local.notice
    if current is not None and not notice.kind.traits.drains:
        return local
    if (
        current is not None
        and current.kind.traits.drains
        and (
            notice.deadline is None
            or (current.deadline is not None and current.deadline <= notice.deadline + 0.5)
        )
    ):
        return local
    return replace(local, notice=notice, drained=False)


def _claimed(local: NodeState, event: Claimed) -> NodeState:
    claim = local.claim
    if event.commit is not None:
        newest = max(event.commit, local.commit or event.commit, key=lambda c: (c.epoch, c.step))
        local = replace(local, commit=newest)
    if claim is None or claim.round != event.round:
        return local
    return replace(local, claim=replace(claim, pending=False, epoch=event.epoch))


def _workers_said(
    local: NodeState, event: WorkerAttached | SaveSealed | LeftCheckpointer
) -> NodeState:
    workers = local.workers
    if workers is None:
        return local
    match event:
        case WorkerAttached():
            workers = replace(workers, attached=True, left=False)
        case LeftCheckpointer():
            workers = replace(workers, left=True)
        case SaveSealed(step, waiting):
            workers = replace(workers, waiting_at=step if waiting else workers.waiting_at)
    return replace(local, workers=workers)
