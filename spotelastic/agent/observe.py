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
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.model.progress import Point
from spotelastic.model.round import RoundEnd
from spotelastic.rendezvous import agreement
from spotelastic.store.election import Leadership

POINTS_KEPT = 512
LEAVE_WITHIN = 10.0
"""Seconds that a node asked to end gives the others to agree on a save, of steps that are short."""
GONE_WITHIN = 30.0
"""Seconds from SIGKILL in which a process ends, unless a driver or a file system keeps it. A GPU
takes a few to give its memory back."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker of this node that ended by itself, or has told of its failure and will."""

    local_rank: int
    code: int
    at: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How far the workers of this node were when somebody last looked.

    Looks are counted, and time is not measured, so that a clock that jumps stalls nobody.
    """

    looked_at: float = 0.0
    steps: tuple[int, ...] = ()
    unchanged: int = 0
    """Looks in a row that found no new step, though one was to be expected."""
    behind: int = 0
    """Local rank of the worker that is furthest behind."""
    step: int = 0
    step_at: float = 0.0
    """The last step of that worker, and when it had executed it."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that this node runs, or has run until they are reaped."""

    round: str
    number: int
    first_rank: int
    epoch: int
    started_at: float
    alive: frozenset[str]
    """Names of those that have not been reaped: `<round>/<local rank>`."""
    exits: tuple[WorkerExit, ...] = ()
    killed: bool = False
    """They are being ended by us: their exits mean nothing."""
    kill_at: float = math.inf
    """When what is left after SIGTERM gets SIGKILL."""
    gone_by: float = math.inf
    """When what SIGKILL has not ended by then counts as stuck."""
    pace: Pace = Pace()
    dumped_at: float = 0.0
    """When they were asked for their stacks, because a node has stalled; 0: they were not."""
    attached: bool = False
    """One of them has entered its Checkpointer."""
    left: bool = False
    """One of them has left its Checkpointer, or never will have one."""
    waiting_at: int = 0
    """The agreed step at which all of them have sealed and wait."""
    silence: Silence = Silence()
    failing: frozenset[str] = frozenset()
    """Those that have told of their failure, and may end by themselves."""
    failed: bool = False
    """A failure of theirs has been reported."""
    resumed: int = 0
    """The step that they go on from: what a page says before its worker has restored is less."""


@dataclass(frozen=True, slots=True)
class RoundStore:
    """The TCPStore process that this node runs for a round."""

    round: str
    id: str
    address: str
    dead: bool = False
    serves: bool = True
    """Not yet: its port is bound, and opens when the round has started."""


@dataclass(frozen=True, slots=True)
class StorageClaim:
    """A claim of the object store for a round. `epoch` 0: not answered, or failed."""

    round: str
    asked_at: float
    pending: bool = True
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """This node, as its agent knows it."""

    node: Node | None = None
    """As registered, or to be registered again under a new lease."""
    fingerprint: Fingerprint | None = None
    """Known once the zygote is warm."""
    zygote: bool = False
    daemon: str = ""
    """host:port of the running daemon; empty while there is none."""
    registered: bool = False
    leadership: Leadership | None = None
    lead_after: int = 0
    """Revision that must be seen before the next decision as the holder."""
    lead_at: float = 0.0
    """And the time at which it is tried again anyway."""
    nodes_seen: bool = False
    """The holder's own branch of the store has been read."""
    refused_at: float = 0.0
    """Since when this node may not join, because of another that may be gone already."""
    write_at: float = 0.0
    """No write to the store before this: the last one found it unavailable."""
    ask_at: float = 0.0
    """The daemon is asked for nothing before this: it has refused something."""
    workers: Workers | None = None
    store: RoundStore | None = None
    claim: StorageClaim | None = None
    outrun: int = 0
    """The newest storage epoch of ours that a later claim has fenced."""
    commit: Commit | None = None
    acknowledged: tuple[str, str, int] = ("", "", 0)
    """(round, phase, epoch) of the last acknowledgement."""
    vote: Vote | None = None
    end: RoundEnd | None = None
    """Of the last round that this node took part in."""
    offered: str = ""
    """Round for which the slots of a node that is left out were published."""
    flushing: str = ""
    flushed: str = ""
    finished: str = ""
    """Round for which it was told that all workers of this node have ended well."""
    finished_at: float = 0.0
    stays: bool = False
    """This node serves the others until the job has ended, also when its own part is done."""
    said: frozenset[str] = frozenset()
    """Topics on which people have been told."""
    notice: Notice | None = None
    drained: bool = False
    """The notice has been written as a drain."""
    hurried: float = math.inf
    """By when the daemon was told that this node will be gone."""
    leaving: int = 0
    """Signal that asked the agent to end."""
    left: bool = False
    """What had to be uploaded before leaving is."""
    points: tuple[Point, ...] = field(default=())
    step: int = 0
    told_at: float = 0.0
    """When progress was last published."""
    told_step: int = 0
    step_time: float = 0.0
    """Seconds per step as last told; 0: not measured yet."""
    told_commit: Commit | None = None
    """The newest that its progress has told."""


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
    """The answer to a claim; epoch 0 when it failed."""

    round: str
    epoch: int
    commit: Commit | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class EpochSuperseded:
    """A later claim has fenced this storage epoch of ours."""

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
    """`local` after `event`."""
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
    """The store knows less than this node, which is new to it. Its workers go on until the next
    round of the new history, which resumes from what is committed."""
    return replace(
        local, node=None, registered=False, leadership=None, nodes_seen=False, claim=None, vote=None
    )


def look(pace: Pace, workers: Sequence[WorkerStep], now: float) -> Pace:
    """`pace` after a look at the workers' pages.

    Before the first step, and while one of them is kept waiting on purpose, none is expected.
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
    """Its failure counts from now on; it lives until its end is told."""
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
    return _noticed(local, Notice("leave", node, "signal", now, now, deadline))


def _noticed(local: NodeState, notice: Notice) -> NodeState:
    """The first notice counts, unless a later one leaves less time; a rebalance is a hint only."""
    current = local.notice
    if current is not None and notice.kind == "rebalance":
        return local
    if (
        current is not None
        and current.kind != "rebalance"
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
