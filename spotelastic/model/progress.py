"""What is told to people: progress, events, status, the ledger and the report."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal


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
    """Bytes handed to the network,"""
    total: int
    """of so many."""
    rate: float
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A node's own account of itself, published at most once a second under a leased key."""

    node: str
    round: int
    step: int
    at: float
    points: tuple[Point, ...] = ()
    """Steps since the last publication; only from the node in slot 0."""
    committed: int = 0
    """The newest step committed in the object store,"""
    epoch: int = 0
    """under this storage epoch: a run that was sent back commits lower steps under a higher one."""
    upload: Upload | None = None
    """This node's part of the checkpoint that is being uploaded."""
    step_time: float = 0.0
    """Seconds per step; 0: not measured yet, as with the next two."""
    stall: float = 0.0
    """Seconds that a save into memory keeps training waiting."""
    commit_time: float = 0.0
    """Seconds that the newest checkpoint took to be uploaded and committed."""
    whole: bool = False
    """The slots of this node alone hold everything that is not per-rank."""
    quiet: str = ""
    """Where its workers stand, that have executed no step for long."""
    at_risk: bool = False
    """AWS recommends to replace this node, or takes it: it may be, or will be, gone soon."""


def newest_committed(told: Iterable[Progress]) -> int:
    """The newest step that any node tells to be in the object store; 0: none does."""
    newest = max(((each.epoch, each.committed) for each in told), default=(0, 0))
    return newest[1]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, in the order it was seen."""

    at: float
    kind: str
    """One word, e.g. notice, drain, loss, round, failure, ledger, etcd, launch, boot, job."""
    message: str
    node: str = ""
    data: dict[str, Any] = field(default_factory=dict)


NodeRole = Literal["worker", "control"]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One row of `spotelastic status`."""

    id: str
    role: NodeRole
    state: str
    """pending, joining, training, waiting, draining, gone, failed (its worker failed the job); for
    control: leading, standing by, joining."""
    zone: str
    address: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """What `spotelastic status` shows; an object in S3 that the leading controller publishes."""

    name: str
    state: str
    at: float
    round: int = 0
    step: int = 0
    loss: float | None = None
    world_size: int = 0
    committed: int = 0
    upload: Upload | None = None
    """Of all nodes together."""
    step_time: float = 0.0
    leader: str = ""
    etcd_leader: str = ""
    reason: str = ""
    """Why the job is in this state; for a failure, the first failing rank."""
    nodes: tuple[NodeStatus, ...] = ()
    messages: dict[str, int] = field(default_factory=dict)
    """AWS's events that the leading controller has dealt with since it leads: how many were
    handled, duplicate, foreign (of somebody else's instances), unknown or malformed."""
    quiet: str = ""
    """That no step is executed, and where the workers stand."""
    short_since: float | None = None
    """Since when fewer than min nodes are there; None: there are enough. The next leader's patience
    with spot counts from here."""


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """One row of `spotelastic ls`."""

    name: str
    state: str
    """Of its job; "incomplete" for a cluster that is half made, or half gone."""
    nodes: int = 0
    """Workers that live."""
    step: int = 0


InterruptionKind = Literal["notice", "loss", "worker", "etcd", "planned"]
"""planned: the node was not taken, but given up: for a smaller job, another zone, cheaper nodes."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """One row of the ledger. Seconds unless a name says otherwise; None: not known (yet)."""

    kind: InterruptionKind
    node: str
    at: float
    seen_after_s: float | None
    saved_step: int | None
    """The step that training resumed from."""
    committed: bool | None
    """Whether that step reached the object store."""
    pause_s: float | None
    """From the last step before to the first step after, less one ordinary step."""
    steps_lost: int | None
    """Optimizer steps that had to be executed twice."""
    told_by: str = ""
    """Whoever saw it first: imds, sqs, signal, command; of a loss ec2, lease; "": not known."""
    seen_after_by: dict[str, float] = field(default_factory=dict)
    """The same as `seen_after_s`, of everybody who saw it."""
    first_step_at: float | None = None
    """When the first step after it was done."""
    usd: float | None = None
    """What the pause and the repeated steps cost; in the row that answers for them."""
    round: int | None = None
    """In which training went on; None where it did not stop, or has not gone on yet."""


@dataclass(frozen=True, slots=True)
class ReportJob:
    state: str
    final_step: int
    steps_run: int
    """Optimizer steps executed, repeats included."""


@dataclass(frozen=True, slots=True)
class Report:
    job: ReportJob
    interruptions: tuple[Interruption, ...]
    goodput: float
    """Share of the time between the first and the last step that went into steps that count."""
    node_hours: float
    """Of workers, as the next three."""
    cost_usd: float
    on_demand_usd: float
    usd_per_hour: float = 0.0
    """For all workers that run now."""
    prices_of: str = ""
    """Date of the on-demand prices."""
    control_usd: float = 0.0
    """For control nodes and NAT gateways so far, and"""
    control_usd_per_hour: float = 0.0
    """for those that run now."""
    total_usd: float = 0.0
    """With the workers."""
    total_usd_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a cluster costs, in US dollars: all that AWS bills by the hour."""

    name: str
    usd_per_hour: float
    """For the workers that run now."""
    cost_usd: float
    """For workers so far."""
    on_demand_usd: float
    """What the workers' hours would have cost on demand."""
    spot_hours: float
    on_demand_hours: float
    """Node-hours of either kind."""
    interruptions_usd: float
    """Of the workers' cost: pauses, and steps that were repeated."""
    max_cost: float | None = None
    """Of the total."""
    hours_left: float | None = None
    """Until that is reached if nothing changes; None without a limit, or with nothing that runs."""
    prices_of: str = ""
    """Date of the on-demand prices."""
    control_usd_per_hour: float = 0.0
    """For the control nodes and NAT gateways that run now, and"""
    control_usd: float = 0.0
    """for those so far."""
    total_usd_per_hour: float = 0.0
    """With the workers."""
    total_usd: float = 0.0
