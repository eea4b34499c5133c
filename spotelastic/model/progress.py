"""Dataclasses that describe how a job is doing: progress, events, status, interruptions, costs.

Agents and controllers write them; `status`, `events` and `report` show them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from spotelastic_checkpoints.types import TimedValue

from spotelastic.model.in_place import Rehearsal, Skipped
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion, Word

LEDGER = "ledger"
"""Kind of the events that carry a row of the ledger."""


@dataclass(frozen=True, slots=True)
class Point:
    """One optimizer step that was executed."""

    step: int
    loss: float | None
    at: float


@dataclass(frozen=True, slots=True)
class Upload:
    """A checkpoint on its way to the object store."""

    step: int
    done: int
    """Bytes handed to the network so far."""
    total: int
    """Bytes of the whole upload."""
    rate: float
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How busy the GPUs of a node are, as nvidia-smi tells."""

    gpus: int
    busy: float
    """Share of the time in which they compute, over all of them."""
    memory: int
    """Bytes of their memory that are in use."""
    memory_total: int
    """Bytes of memory that they have."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A node's report on itself, published at most once a second under a leased key."""

    node: str
    round: int
    step: int
    at: float
    points: tuple[Point, ...] = ()
    """Steps since the last publication."""
    committed: int = 0
    """The newest step committed in the object store."""
    epoch: int = 0
    """Storage epoch of that commit. A run that was sent back commits in a later one."""
    upload: Upload | None = None
    """This node's part of the checkpoint that is being uploaded."""
    step_time: float = 0.0
    """Seconds per step; 0: not measured yet."""
    stall: float = 0.0
    """Seconds for which a snapshot keeps training waiting; 0: not measured yet."""
    commit_time: float = 0.0
    """Seconds that the newest checkpoint took to upload and commit; 0: not measured yet."""
    whole: bool = False
    """Whether this node's slots alone hold everything that is not per-rank."""
    quiet: str = ""
    """Where the workers stand if they have executed no step for long."""
    at_risk: bool = False
    """Whether AWS recommends replacing this node, or has announced its end."""
    measured: int = 0
    """Number of the measurement of the node's own time; 0: there was none in this round."""
    own_time: float = 0.0
    """Seconds of a step in which its slowest worker works, and does not wait for other ranks."""
    waiting_time: float = 0.0
    """Seconds of a step in which that worker waits for them."""
    rests: bool = False
    """Whether its workers can outlive their round."""
    replica: int = 0
    """The newest step of this round of which the node keeps another one's shards; 0: of none."""
    replica_time: float = 0.0
    """Seconds that it took to copy these; 0: not measured yet."""
    restore_time: float = 0.0
    """Seconds that the node's workers took to restore in this round; 0: they have not."""
    restored_from: str = ""
    """Where that came from: memory, replica or store."""
    crossed: int = 0
    """Bytes that the node has sent to nodes in other zones since its agent's start."""
    crossing: int = 0
    """Bytes a second that it sends to nodes in other zones."""
    sending: int = 0
    """Bytes a second that it sends to all other nodes; 0: not measured."""
    total: int = 0
    """The step that the run ends with; 0: the script does not say."""
    samples: float = 0.0
    """Samples per step of all workers of the node; 0: the script does not say."""
    not_finite: int = 0
    """The step since which its losses are NaN or infinite; 0: the newest one is finite, or none is
    known. JSON has no such numbers: `points` has None for them.
    """
    not_finite_at: float = 0.0
    """When that step was done."""
    unsaved: str = ""
    """Why its checkpoints do not reach the object store; empty if nothing is known to be wrong."""
    logged: dict[str, TimedValue] = field(default_factory=dict)
    """The newest values that rank 0 logs, by name; those of its own round, on its node alone."""
    gpu: GpuUse | None = None
    """How busy its GPUs are; None: that is not known."""


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node that keeps the others waiting, stored until it no longer does."""

    node: str
    incarnation: str
    at: float
    """When it was named."""
    factor: float
    """How many times as long as the others it takes for its part of a step."""
    speed: float
    """The job's speed, as a share of what it would be if the node were as fast as others."""

    @property
    def line(self) -> str:
        """For people."""
        return (
            f"node {self.node} is {self.factor:.1f} times slower than the others: "
            f"the job trains at {self.speed:.0%} of its speed"
        )


def newest_committed(told: Iterable[Progress]) -> int:
    """Return the newest step that any node reports as committed; 0: none."""
    newest = max(((each.epoch, each.committed) for each in told), default=(0, 0))
    return newest[1]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    at: float
    kind: str
    """One word, e.g. notice, drain, loss, round, failure, ledger, etcd, launch, boot, job."""
    message: str
    node: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def starts_round(self) -> bool:
        return self.kind == "round" and self.data.get("phase") == "started"


NodeRole = Word["worker", "control"]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One row of `spotelastic status`."""

    id: str
    role: NodeRole
    state: str
    """Of a worker node: pending, joining, training, waiting, draining, sick, gone, or failed (its
    worker failed the job). Of a control node: leading, standing by, or joining."""
    zone: str
    address: str
    ranks: tuple[int, ...] = ()
    type: str = ""
    """The instance type; empty: not told."""
    leaves_at: float | None = None
    """When the node may be gone, by a notice or an announcement; None: nothing is announced."""
    gpu: GpuUse | None = None
    """How busy its GPUs are; None: that is not known."""


SILENT_AFTER = 20.0
"""Seconds without a new status after which no controller seems to lead."""


@dataclass(frozen=True, slots=True)
class Status:
    """What `spotelastic status` shows; the leading controller publishes it as an object in S3."""

    name: str
    state: str
    at: float
    round: int = 0
    step: int = 0
    loss: float | None = None
    world_size: int = 0
    committed: int = 0
    upload: Upload | None = None
    """The checkpoint that is being uploaded, summed over all nodes."""
    step_time: float = 0.0
    """Seconds per step; 0: not measured yet."""
    leader: str = ""
    etcd_leader: str = ""
    reason: str = ""
    """Why the job is in this state; for a failure, the first failing rank."""
    nodes: tuple[NodeStatus, ...] = ()
    messages: dict[str, int] = field(default_factory=dict)
    """Numbers of the cloud's events since this controller leads, by what was done about them."""
    quiet: str = ""
    """Where the workers stand if no step is executed; empty otherwise."""
    short_since: float | None = None
    """Since when fewer than min nodes are present; None: there are enough."""
    warnings: tuple[str, ...] = ()
    """What somebody has suspended of the worker groups, what is announced for nodes, keys in etcd
    that cannot be read, and nodes of different versions: one line each.
    """
    protocol: ProtocolVersion = PROTOCOL
    """The protocol of the leading controller."""
    slow: tuple[SlowNode, ...] = ()
    """Nodes that keep the others waiting, the slowest first."""
    network: str = ""
    """EFA devices of the nodes, and whether NCCL's plugin is there; empty: none has them."""
    replica: int = 0
    """The newest step whose shards are each in another node's memory, too; 0: of none."""
    rehearsal: Rehearsal | None = None
    """What a step that was made again has shown; None: none was."""
    proof: Rehearsal | None = None
    """What the first commit has shown when it was read back; None: it was not yet."""
    skipped: Skipped = Skipped()
    """Steps that `--guard` has skipped."""
    audit: Rehearsal | None = None
    """The newest audit in which ranks have differed; None: in none."""
    total: int = 0
    """The step that the run ends with; 0: the script does not say."""
    samples_per_second: float = 0.0
    """Samples (or tokens) per second of all workers; 0: the script does not say."""
    pace: float = 0.0
    """Seconds per step that counts over the last hour of steps, with pauses; 0: not measured."""
    began_at: float = 0.0
    """When the run's first step was done; 0: none was."""
    stepped_at: float = 0.0
    """When the newest step was done; 0: none was."""
    not_finite: int = 0
    """The step since which the loss is NaN or infinite; 0: it is not. `loss` is None then."""
    usual_loss: float | None = None
    """What the loss was before it went far out of its history; None: it has not."""
    unsaved: str = ""
    """Why checkpoints do not reach the object store; empty if nothing is known to be wrong."""
    committed_at: float = 0.0
    """When a step was last committed; 0: none was."""
    error: str = ""
    """The error with which the job failed, in one line."""
    ends_at: float | None = None
    """When the cluster of a job that has ended ends, too; None: not by itself, or not yet."""
    usd: float = 0.0
    """US dollars that the whole cluster has cost so far; 0: prices are not known."""
    usd_per_hour: float = 0.0
    """What all that runs now costs an hour."""
    logged: dict[str, float | None] = field(default_factory=dict)
    """The newest values that the script logs, by name; None: NaN or infinite."""

    @property
    def differs(self) -> bool:
        """Whether a step was not the same when it was made again, or when it was read back."""
        return any(each is not None and each.differs for each in (self.rehearsal, self.proof))

    def silent_for(self, now: float) -> float:
        """Return the seconds since a controller last reported.

        0 if one still reports, or if the job has ended.
        """
        age = now - self.at
        return age if age > SILENT_AFTER and self.state not in ENDED else 0.0


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """One row of `spotelastic ls`."""

    name: str
    state: str
    """The job's state; "incomplete" for a cluster that is partly created or partly removed, "of
    another version" for one that this installation cannot read, "gone" for one on Kubernetes that
    has left nothing of its job."""
    nodes: int = 0
    """Number of live worker nodes."""
    step: int = 0
    differs: bool = False
    """Whether a step of the job was not the same when it was made again."""
    silent_for: float = 0.0
    """Seconds since a controller last reported; 0 if one still does, or the job has ended."""
    total: int = 0
    """The step that the run ends with; 0: the script does not say."""
    ends_at: float | None = None
    """About when it will be there; None: that is not known."""
    usd: float = 0.0
    """US dollars that the cluster has cost so far; 0: prices are not known."""
    usd_per_hour: float = 0.0
    headline: str = ""
    """The worst that is wrong, in one line; empty if nothing is."""
    kind: str = ""
    """What that is, as a word."""
    colour: str = ""
    """"red" or "yellow"; empty if nothing is wrong."""
    weight: int = 0
    """How bad it is, for sorting: more is worse."""
    began_at: float = 0.0
    """When the cluster was created (epoch seconds); 0: not known."""
    at: float = 0.0
    """When its status was published last (epoch seconds); 0: not known."""
    is_gone: bool = False
    """Whether the cluster is gone, and this is what it has left."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """One row of the ledger. Times are in seconds; None: not known (yet)."""

    kind: InterruptionKind
    node: str
    """Empty: workers lost a peer, and it is not known of which node."""
    at: float
    seen_after_s: float | None = None
    saved_step: int | None = None
    """The step that training resumed from."""
    committed: bool | None = None
    """Whether that step reached the object store; None: not yet, or no step is known."""
    pause_s: float | None = None
    """Seconds from the last step before to the first step after, less one ordinary step."""
    steps_lost: int | None = None
    """Optimizer steps that had to be repeated."""
    told_by: str = ""
    """The source that reported it first: imds, sqs, signal, command, cloud or lease; or empty."""
    seen_after_by: dict[str, float] = field(default_factory=dict)
    """`seen_after_s` of every source that reported it."""
    first_step_at: float | None = None
    """When the first step after it was done."""
    usd: float | None = None
    """US dollars that the pause and the repeated steps cost, in the row that accounts for them."""
    round: int | None = None
    """The round in which training went on; None if it did not stop, or has not gone on yet."""
    source: str = ""
    """Where that step came from: memory (of the nodes that held it), replica (also from a node that
    kept another one's shards), store, or empty where training did not stop."""
    restore_s: float | None = None
    """Seconds that the slowest node took to restore, as the nodes measured it: from the first
    request of a worker until all of them had read everything. None: no node has told of one."""
    restores: dict[str, float] = field(default_factory=dict)
    """The same by source: that of each node's own restore."""
    step_s: float | None = None
    """Seconds of an ordinary step then, which `pause_s` leaves out; None: not recorded."""


def row_of(event: Event) -> Interruption | None:
    """Return the row of the ledger that an event tells of. One of another version is left out."""
    if event.kind != LEDGER:
        return None
    try:
        return msgspec.convert(event.data.get("interruption"), Interruption)
    except msgspec.ValidationError:
        return None


@dataclass(frozen=True, slots=True)
class ReportJob:
    state: str
    final_step: int
    steps_run: int
    """Optimizer steps executed, repeats included."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a job has come to. Fields that a `Status` has as well say the same."""

    job: ReportJob
    interruptions: tuple[Interruption, ...]
    goodput: float
    """Share of the time between the first and the last step that went into steps that count."""
    node_hours: float
    """Hours of worker nodes."""
    cost_usd: float
    """What the worker nodes cost so far."""
    on_demand_usd: float
    """What the same hours would have cost on demand."""
    usd_per_hour: float = 0.0
    """What the worker nodes that run now cost an hour."""
    prices_of: str = ""
    """Date of the on-demand prices."""
    control_usd: float = 0.0
    """What control nodes and NAT gateways cost so far."""
    control_usd_per_hour: float = 0.0
    """What the control nodes and NAT gateways that run now cost an hour."""
    total_usd: float = 0.0
    """What the whole cluster cost so far."""
    total_usd_per_hour: float = 0.0
    """What all that runs now costs an hour."""
    rehearsal: Rehearsal | None = None
    proof: Rehearsal | None = None
    fingerprint: str = ""
    """SHA-256 of all with which a run with virtual ranks has ended; empty for others."""
    skipped: Skipped = Skipped()
    audit: Rehearsal | None = None
    traffic_usd: float = 0.0
    """What the nodes have sent to other zones cost so far."""
    traffic_usd_per_hour: float = 0.0
    """What they send to other zones now costs an hour."""

    @property
    def is_priced(self) -> bool:
        """Whether prices are known. Those of pods are not."""
        return self.total_usd > 0 or self.cost_usd > 0 or not self.node_hours


@dataclass(frozen=True, slots=True)
class Cost:
    """What a cluster costs, in US dollars.

    That is all that AWS bills by the hour, and what nodes send to other zones. Fields that a
    `Report` has as well say the same.
    """

    name: str
    usd_per_hour: float
    cost_usd: float
    on_demand_usd: float
    spot_hours: float
    """Hours of spot worker nodes."""
    on_demand_hours: float
    """Hours of on-demand worker nodes."""
    interruptions_usd: float
    """The part of `cost_usd` that went into pauses and repeated steps."""
    max_cost: float | None = None
    """The job's limit on the total cost; None: no limit."""
    hours_left: float | None = None
    """Hours until `max_cost` is reached at the present rate; None: never, at that rate."""
    prices_of: str = ""
    control_usd_per_hour: float = 0.0
    control_usd: float = 0.0
    total_usd_per_hour: float = 0.0
    total_usd: float = 0.0
    traffic_usd: float = 0.0
    traffic_usd_per_hour: float = 0.0

    @property
    def is_priced(self) -> bool:
        """Whether prices are known. Those of pods are not."""
        return self.total_usd > 0 or self.cost_usd > 0 or not self.node_hours

    @property
    def node_hours(self) -> float:
        """Hours of worker nodes."""
        return self.spot_hours + self.on_demand_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What the cluster in the region before has published last."""

    region: str
    """Where the job was."""
    to: str
    """The region to which it was moved."""
    step: int
    """The step that it was moved with."""
    copied_usd: float = 0.0
    """US dollars for the bytes that were copied between the regions."""
    last_step: int = 0
    """The last step that was made there."""
    first_step_at: float = 0.0
    last_step_at: float = 0.0
    """When the first and the last step were made there (epoch seconds); 0 if there were none."""
    events: tuple[Event, ...] = ()
    report: Report | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """A move that was begun, as the source's bucket has it until the move is undone."""

    region: str
    """The region that the job moves to."""
    reason: str = ""
    """Why it moves by itself; empty if somebody moves it."""
