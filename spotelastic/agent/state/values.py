"""What an agent knows of its own node, as frozen values: `NodeState` and its parts.

Only `observe.py` makes new ones, from events. Together with `rendezvous.view.RunState` (the run, as
etcd shows it) this is all that `decide` sees.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotelastic_checkpoints.types import Commit, WorkerStep

from spotelastic.agent.state.node_health import NodeHealth
from spotelastic.agent.state.silence import Silence
from spotelastic.model.agreement import Vote
from spotelastic.model.in_place import Standing
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.model.progress import Point
from spotelastic.model.round import Round, RoundEnd
from spotelastic.store.port import Compare

BLIND = "blind"
"""Topic: this node cannot read what others have written. An acknowledgement takes it back."""


def local_rank_of(name: str) -> int:
    """Return a worker's local rank, with which its name ends."""
    return int(name.rpartition("/")[2])


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


def look(pace: Pace, workers: Sequence[WorkerStep], now: float) -> Pace:
    """Return `pace` after a look at the workers' pages.

    No step is expected before the first one, and while one of the workers is kept waiting on
    purpose.
    """
    steps = tuple(worker.step for worker in workers)
    expected = any(w.first_step_at for w in workers) and not any(w.waiting for w in workers)
    behind = min(workers, key=lambda w: (w.step, w.last_step_at))
    unchanged = pace.unchanged + 1 if expected and steps == pace.steps else 0
    return Pace(now, steps, unchanged, behind.local_rank, behind.step, behind.last_step_at)


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
    """Whether this agent is ending them, so that exits mean nothing but for those in `ended`."""
    ended: frozenset[str] = frozenset()
    """Workers that had ended by themselves when the others were killed."""
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
    told_broken: bool = False
    """Whether that was no more than a failed collective, which a worker's own failure explains."""
    resumed: int = 0
    """The step that they resume from. A page shows less before its worker has restored."""
    home: tuple[int, int] | None = None
    """Round number and first rank under which the processes were started, by which their files are
    named; None: those of this round.
    """
    listening: frozenset[int] = frozenset()
    """Local ranks of the workers that can rest."""
    can_rest: bool = False
    """Whether the script is one whose workers can rest."""
    rest_by: float = math.inf
    """When workers that were asked to rest, and do not, are killed."""
    save_first: bool = False
    """Whether they save what they have before they rest, which takes longer."""
    rested: Mapping[int, Standing] = field(default_factory=dict)
    """Where those that rest do so, by local rank."""
    awaited: frozenset[int] = frozenset()
    """Local ranks of those that were told of the round, or asked, and have not answered."""
    answer_by: float = math.inf
    """When those that have not answered are killed."""
    ask_at: float = math.inf
    """When they are asked again, until they have made a step."""
    broken: tuple[int, str, str] | None = None
    """Local rank, message and traceback of the first one that rests because a collective failed."""

    @property
    def names_after(self) -> tuple[int, int]:
        """Round number and first rank by which the files of these workers are named."""
        return self.home or (self.number, self.first_rank)

    @property
    def fails_untold(self) -> bool:
        """Whether one of them has failed, and no more was reported than a failed collective."""
        return any(exit_.code for exit_ in self.exits) and (not self.failed or self.told_broken)

    @property
    def ended_early(self) -> bool:
        """Whether one of them has ended without an error, and with its Checkpointer open."""
        is_open = self.attached and not self.left and not self.failed
        return is_open and any(not exit_.code for exit_ in self.exits)

    @property
    def all_rest(self) -> bool:
        """Whether each of them lives, and rests."""
        return bool(self.alive) and not self.exits and len(self.rested) == len(self.alive)


@dataclass(frozen=True, slots=True)
class RestingWorkers:
    """Workers that have left their round, and are alive. They enter the next one, or are killed."""

    workers: Workers
    """As they were in their round."""
    promised: frozenset[str] = frozenset()
    """Rounds for which this node has said that they rest."""

    @property
    def all_hear(self) -> bool:
        """Whether each of them can be told of a round."""
        return len(self.workers.listening) == len(self.workers.alive)

    def belong_before(self, round_: Round) -> bool:
        """Whether they were in the round before this one, or have not entered it.

        Nobody has made a step in a round that one of its members has not entered. If it resumed
        from memory, all members have one history.
        """
        missed = round_.parent_from_memory and round_.parent in self.promised
        return self.workers.round == round_.parent or missed

    @property
    def standings(self) -> tuple[Standing, ...]:
        return tuple(self.workers.rested[rank] for rank in sorted(self.workers.rested))


@dataclass(frozen=True, slots=True)
class RoundStore:
    """The TCPStore process that this node runs for a round."""

    round: str
    id: str
    address: str
    dead: bool = False
    number: int = 0
    """The round's number. A proposal that was replaced before it started has that of the next."""
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
    run_id: str = ""
    owned: str = ""
    """Says to which other run the storage belongs; empty where it does not."""


@dataclass(frozen=True, slots=True)
class ProbedPeers:
    """Members of a round whose daemons this node has tried to reach."""

    round: str = ""
    nodes: frozenset[str] = frozenset()
    refusing: frozenset[str] = frozenset()
    """Those of them that are gone."""


@dataclass(frozen=True, slots=True)
class NodeMembership:
    """Whether this node can belong to the run, does, and decides for it."""

    zygote: bool = False
    fingerprint: Fingerprint | None = None
    """The node's software; known once the zygote is warm."""
    node: Node | None = None
    """The node as registered, or as it will be under a new lease."""
    registered: bool = False
    leadership: Compare | None = None
    """The precondition of all that the holder writes; None: this node is not the holder."""
    nodes_seen: bool = False
    """Whether the holder's own branch of etcd has been read."""
    probed: ProbedPeers = ProbedPeers()


@dataclass(frozen=True, slots=True)
class NodeDeparture:
    """Whether this node is on its way out, and how far."""

    stays: bool = False
    """Whether this node serves the others until the job has ended, even when its own part is
    done.
    """
    notice: Notice | None = None
    drained: bool = False
    """Whether the notice has been written as a drain."""
    scheduled: tuple[Notice, ...] = ()
    """What is announced, and for which the node need not leave yet."""
    untold: tuple[Notice, ...] = ()
    """Notices that do not make the node leave, and are to be recorded."""
    hurried: float = math.inf
    """The time at which this node will be gone, as the daemon was told."""
    leaving: int = 0
    """The signal that asked the agent to end; 0: none did."""
    left: bool = False
    """Whether everything due before leaving has been uploaded."""


@dataclass(frozen=True, slots=True)
class NodeStores:
    """The node's daemon, the store of a round, and what is known of the storage."""

    daemon: str = ""
    """host:port of the running daemon; empty while there is none."""
    round_store: RoundStore | None = None
    spare: str = ""
    """Name of the store process that waits for a round to come; empty: there is none."""
    spare_at: float = 0.0
    """No other one is started before this time."""
    claim: StorageClaim | None = None
    outrun: int = 0
    """The newest storage epoch of this node that a later claim has fenced."""
    commit: Commit | None = None
    flushing: str = ""
    flushed: str = ""


@dataclass(frozen=True, slots=True)
class NodeAgreement:
    """What this node has answered in the current round, and what it has to answer with."""

    acknowledged: tuple[str, str, int] = ("", "", 0)
    """(round, phase, epoch) of the last acknowledgement."""
    vote: Vote | None = None
    offered: str = ""
    """The round for which this node, left out of it, has published its snapshots."""
    kept: str = ""
    """The round for which this node said that its workers rest."""
    end: RoundEnd | None = None
    """The end of the last round that this node took part in."""


@dataclass(frozen=True, slots=True)
class NodeReports:
    """What this node has reported, and what it has to report."""

    said: frozenset[str] = frozenset()
    """Topics that have been reported."""
    points: tuple[Point, ...] = ()
    step: int = 0
    told_at: float = 0.0
    """When progress was last published."""
    told_step: int = 0
    told_commit: Commit | None = None
    """The newest commit that was published with its progress."""
    step_time: float = 0.0
    """Seconds per step as last published; 0: not measured yet."""
    finished: str = ""
    """The round for which the success of all workers of this node was recorded."""
    finished_at: float = 0.0
    not_finite: int = 0
    """The step since which no loss was finite; 0: the newest one that is known is."""
    not_finite_at: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeRetries:
    """When to try again what has failed, or what was written just now and is not seen yet."""

    write_at: float = 0.0
    """No write to etcd before this time: it was unavailable."""
    ask_at: float = 0.0
    """No request to the daemon before this time: it has refused one."""
    refused_at: float = 0.0
    """Since when this node may not join, because of another node that may be gone already."""
    lead_after: int = 0
    """Store revision that must be seen before the holder decides again."""
    lead_at: float = 0.0
    """When the holder decides again anyway."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What an agent knows of its own node."""

    membership: NodeMembership = NodeMembership()
    departure: NodeDeparture = NodeDeparture()
    health: NodeHealth = NodeHealth()
    workers: Workers | None = None
    resting: RestingWorkers | None = None
    store: NodeStores = NodeStores()
    agreement: NodeAgreement = NodeAgreement()
    reports: NodeReports = NodeReports()
    retries: NodeRetries = NodeRetries()

    @property
    def node(self) -> Node | None:
        return self.membership.node

    @property
    def departs(self) -> bool:
        """Whether the agent was asked to end, or its node is sick."""
        return bool(self.departure.leaving) or self.health.fault is not None


NEW = NodeState()
"""The state of an agent to which nothing has happened."""
