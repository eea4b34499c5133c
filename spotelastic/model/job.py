"""Values that describe a job: its settings, what it may buy, what is shipped, and its state."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from spotelastic.model.interval import Interval
from spotelastic.model.node import Node
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion, Word
from spotelastic.model.replication import Replication
from spotelastic.model.validity import Validity

RankPolicy = Literal["stable", "pinned", "on-demand-first"]
JobState = Literal["pending", "running", "succeeded", "failed", "stopped", "timed out"]
TAKEN_DOWN = "taken down"
"""State of a job that had not ended when its cluster was taken down. It is shown, never stored."""
ENDED = frozenset({"succeeded", "failed", "stopped", "timed out", TAKEN_DOWN})
ALLOW_UNCOMMITTED = "SPOTELASTIC_ALLOW_UNCOMMITTED"
"""Workers' environment variable: with 1 a run succeeds although its last step is not committed."""
MOST_TEXT = 16384
"""Most characters of a failure's message, and of its traceback: etcd refuses large values."""
OnDemand = Word["never", "fallback"]
Spreading = Word["pack", "spread"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that decisions about rounds depend on; one key in etcd."""

    min_nodes: int
    max_nodes: int
    workers: int = 1
    """Workers on this node. Other nodes may have more or fewer."""
    max_restarts: int = 3
    gang: bool = False
    """Whether the loss of a node fails the whole job."""
    rank_policy: RankPolicy = "stable"
    """With "pinned": a node has the group rank that its --node-rank names, for as long as it
    lives. With "on-demand-first": nodes on demand have the first ranks.
    """
    lease: float = 2.0
    quiet: float = 0.5
    """Seconds without a further arrival before arrivals form a round."""
    seen_within: float = 0.3
    ready_within: float = 30.0
    stall_timeout: float = 0.0
    """Seconds without a step after which a round is replaced; 0: never."""
    snapshot_every: Interval = Interval()
    """Interval between snapshots in memory."""
    checkpoint_every: Interval = Interval()
    """Interval between checkpoints in the object store."""
    keep_last: int = 3
    """How many of the newest checkpoints are kept."""
    keep_every: int = 0
    """Checkpoints at multiples of this step are kept, too; 0: none."""
    outputs: tuple[str, ...] = ()
    """Folders, relative to the script's, whose files are kept beside the checkpoints."""
    exit_barrier: float = 300.0
    """Seconds that a node whose workers have finished waits for the workers of other nodes."""
    code: str = ""
    """Hash of what nodes must run: the code, or the job's `release`."""
    protocol: ProtocolVersion = PROTOCOL
    """The protocol of the node or command that wrote the settings."""
    slow_after: float = 180.0
    """Seconds for which a node keeps the others waiting until it is named as slow; 0: never."""
    replace_slow: bool = False
    """Whether a node that is slow is replaced."""
    replicate: Replication = Replication()
    """Whether nodes keep replicas of each other's shards in memory."""
    rehearse: str = "auto"
    """Whether steps are made again, to see whether they come back: auto, off, or strict."""
    exact: bool = False
    """Whether the run is to have the same bits on any nodes."""
    guard: bool = False
    """Whether steps are skipped whose loss or gradients cannot be right."""
    audit: int = 0
    """One step in so many is audited: a virtual rank is computed again by other ranks; 0: none."""

    def difference(self, other: "Settings") -> str | None:
        """Return the first flag in which two nodes of a run differ, naming both sides, or None.

        Code is compared in `Fingerprint`; the number of workers is each node's own.
        """
        mine, theirs = self._flags(), other._flags()
        for flag, value in mine.items():
            if value != theirs[flag]:
                return f"{flag} {value} here, {theirs[flag]} there"
        return None

    def _flags(self) -> dict[str, object]:
        low, high = self.min_nodes, self.max_nodes
        return {
            "--nnodes": str(low) if low == high else f"{low}:{high}",
            "--max-restarts": self.max_restarts,
            "--gang": "given" if self.gang else "not given",
            "--rank-policy": self.rank_policy,
            "--snapshot-every": self.snapshot_every,
            "--checkpoint-every": self.checkpoint_every,
            "--keep-last": self.keep_last,
            "--keep-every": self.keep_every,
            "--output": ", ".join(self.outputs) or "not given",
            "--replicate": self.replicate,
            "--rehearse": self.rehearse,
            "--exact": "given" if self.exact else "not given",
            "--guard": "given" if self.guard else "not given",
            "--audit": f"1/{self.audit}" if self.audit else "not given",
            "--exit-barrier-timeout": f"{self.exit_barrier:g}",
            "lease": f"{self.lease:g} s",
            "quiet": f"{self.quiet:g} s",
            "seen-within": f"{self.seen_within:g} s",
            "ready-within": f"{self.ready_within:g} s",
            "--stall-timeout": f"{self.stall_timeout:g} s",
            "slow-after": f"{self.slow_after:g} s",
        }


@dataclass(frozen=True, slots=True)
class Reference:
    """The node of a run that all others must match, and its settings."""

    node: Node
    settings: Settings
    protocol: ProtocolVersion = PROTOCOL

    def refusal(self, node: Node, settings: Settings) -> str | None:
        """Return why the node does not match, naming both sides, or None if it does."""
        difference = node.fingerprint.difference(self.node.fingerprint)
        difference = difference or settings.difference(self.settings)
        if difference is None:
            return None
        return f"node {node.id} does not match node {self.node.id} of this run: {difference}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's failure, as its agent saw it."""

    id: str
    node: str
    round: str
    rank: int
    local_rank: int
    at: float
    exit_code: int
    """The exit code; negative: ended by that signal."""
    message: str = ""
    traceback: str = ""
    log: str = ""
    """Path of the rank's log on its node."""
    stalled: bool = False
    """Whether the worker hung: no worker of the node executed a step. `at` is the last step's."""
    rests: bool = False
    """Whether workers of this script can rest: those that have not failed keep their state."""
    attached: bool = False
    """Whether a worker of the node had entered its Checkpointer, and so would report its steps."""
    broken: bool = False
    """Whether nothing but a collective failed: the workers of this node rest."""

    def storable(self) -> "Failure":
        """Return the failure with texts cut to what etcd takes. The whole is in the log."""
        return replace(self, message=beginning(self.message), traceback=_end(self.traceback))


def beginning(text: str) -> str:
    """Return as much of the text's beginning as etcd takes, marked where it is cut."""
    cut = len(text) - MOST_TEXT
    return _encodable(text if cut <= 0 else f"{text[:MOST_TEXT]} [{cut} characters more]")


def _end(text: str) -> str:
    cut = len(text) - MOST_TEXT
    return _encodable(text if cut <= 0 else f"[{cut} characters before]\n{text[-MOST_TEXT:]}")


def _encodable(text: str) -> str:
    """Replace lone surrogates, which stand for undecodable bytes in file names and break JSON."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Job:
    """The job's state; one key in etcd, without a lease."""

    state: JobState
    at: float
    reason: str = ""
    final_step: int = 0
    failure: Failure | None = None
    """The first failing rank, when the state is "failed"."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job is to end once its last step is committed; one key in etcd, without a lease."""

    """The state to end in: "stopped" or "timed out"."""
    state: JobState
    """With "stopped" or "timed out"."""
    at: float
    """When the end was requested."""
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """One member's success: all its workers ended well, after their final commit. Never leased."""

    node: str
    round: str
    at: float
    end_step: int = 0
    first_step_at: float = 0.0
    last_step_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation of capacity that the account has, or that is shared with it."""

    id: str
    type: str = ""
    zone: str = ""
    count: int = 0
    """Instances that the job may have in it: free ones when `up` looked, and its own."""
    market: str = ""
    """EC2's type of market of its instances; empty: on demand."""
    owner: str = ""
    """The account that shares it and is paid as on demand; empty: it is paid for anyway."""
    open: bool = False
    """Whether it takes any instance that fits, and not only those that name it."""

    @property
    def paid(self) -> bool:
        """Whether an instance in it costs nothing more."""
        return not self.owner


@dataclass(frozen=True, slots=True)
class Capacity:
    """What may be bought for the job, and where its limits are."""

    on_demand: OnDemand = "never"
    """With "fallback": on-demand nodes fill up to min after `spot_patience` without spot."""
    base: int = 0
    """Number of on-demand nodes that the job has at all times."""
    spot_patience: float = 600.0
    """Seconds of too few spot nodes after which "fallback" buys on demand."""
    zones: Spreading = "pack"
    """With "pack": all nodes in one zone; "spread": nodes in all zones that have them."""
    max_price: float | None = None
    """US dollars an hour above which no spot node is launched, whatever its type."""
    max_cost: float | None = None
    """US dollars that the cluster may cost until the job ends, control nodes included."""
    deadline: float | None = None
    """When the job ends, finished or not; seconds since the epoch."""
    within: float | None = None
    """Relative deadline in seconds, as given: repeating it does not move the deadline."""
    keep_failed: bool = False
    """Whether the node whose worker failed the job stays as long as the control nodes do."""
    reservations: tuple[Reservation, ...] = ()
    """Where nodes are launched first, in the on-demand group."""

    @property
    def reserved(self) -> int:
        """Number of nodes that fit into the reservations, those of a base at most.

        The group of a base buys what they lack.
        """
        fit = sum(each.count for each in self.reservations)
        return min(fit, self.base) if self.base else fit

    @property
    def reserved_zones(self) -> tuple[str, ...]:
        """The zones of the reservations."""
        return tuple(dict.fromkeys(each.zone for each in self.reservations))

    def kept_in(self, zones: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the zones that the job may be in.

        A job in a single zone does not leave that of its reservations.
        """
        its = self.reserved_zones if self.zones == "pack" else ()
        return tuple(zone for zone in zones if zone in its) if its else zones

    @property
    def steady(self) -> int:
        """Number of nodes that the on-demand group has at all times, as far as it gets them."""
        return max(self.base, self.reserved)

    @property
    def paid(self) -> frozenset[str]:
        """The reservations that are paid for anyway."""
        return frozenset(each.id for each in self.reservations if each.paid)


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions between which a job moves by itself, and when."""

    names: tuple[str, ...]
    """All of them. In those where the job is not, its cluster is asleep."""
    patience: float | None = 1200.0
    """Seconds with fewer than min nodes after which the job moves; None: that moves it never."""
    prefer_capacity: bool = False
    """Whether the job also moves while it trains, where another region has long been worth more."""
    moves_per_day: int = 12
    """Most moves within 24 hours."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The packages that a script needs, as a file in its folder lists them."""

    kind: Literal["uv", "pip", "conda"]
    file: str
    """Path within the shipped folder."""
    key: str
    """Hash of everything the environment is built from. Nodes add their own platform."""


@dataclass(frozen=True, slots=True)
class AccountDemands:
    """What the user's account demands of everything that is made in it."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """The user's own tags."""
    boundary: str = ""
    """ARN of the permissions boundary of roles; empty: none."""
    key: str = ""
    """ARN of the key that encrypts disks, parameters and logs; empty: AWS's own."""
    data_keys: tuple[str, ...] = ()
    """ARNs of further keys, by which the buckets of `read` and `write` are encrypted."""
    worker_profile: str = ""
    """The account's own instance profile of workers, by name or ARN; empty: the stack makes one."""
    control_profile: str = ""
    """The same of control nodes."""
    stack_role: str = ""
    """ARN of the account's own role that deletes stacks; empty: `up` makes one for all."""
    security_group: str = ""
    """The account's own security group of all nodes; empty: the stack makes one."""
    worker_image: str = ""
    """The account's own machine image of workers, or the parameter that names it; empty: AWS's."""
    control_image: str = ""
    """The same of control nodes."""
    proxy: str = ""
    """URL of the proxy by which nodes reach the internet; empty: none."""
    no_proxy: tuple[str, ...] = ()
    """Hosts and networks that nodes reach without it, besides those of their own network."""
    index_url: str = ""
    """URL of the package index of nodes; empty: PyPI."""


NO_DEMANDS = AccountDemands()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What `up` writes to the bucket as `job.json`, and every booting instance reads."""

    cluster: str
    run: str
    """Name of the run, under which its checkpoints are stored, whichever cluster trains it."""
    script: str
    """Path within the shipped folder."""
    args: tuple[str, ...]
    code: str
    """SHA-256 of the code archive, stored as `code/<sha256>.tar.gz`."""
    settings: Settings
    storage: str
    """fsspec URL that checkpoints go to, e.g. s3://bucket/name/checkpoints."""
    etcd: tuple[str, ...]
    """host:port of every etcd member."""
    etcd_members: tuple[str, ...] = ()
    """Names of the members, in the order of `etcd`."""
    control_type: str = "t3.small"
    """Instance type of the control nodes."""
    etcd_version: str = ""
    """The etcd release that control nodes install; empty: etcd is there already."""
    container: str = ""
    """The container image that workers run in; empty: no container."""
    log_group: str = ""
    queue: str = ""
    """Name of the queue on which AWS's events arrive."""
    worker_group: str = ""
    """Name of the Auto Scaling group of workers."""
    instance_types: tuple[str, ...] = ()
    created_at: float = 0.0
    """When `up` was run last, by its machine's clock; seconds since the epoch, 0: not known."""
    born_at: float = 0.0
    """When the cluster was created, by that machine's clock; 0: not known."""
    capacity: Capacity = Capacity()
    linger: float | None = 600.0
    """Seconds that the cluster stays after the job has ended; None: until `down`."""
    vpc: str = ""
    """The user's network that the cluster is in; empty: a network of its own."""
    subnets: tuple[str, ...] = ()
    """Subnets of the user's network that the cluster uses."""
    nat_gateways: int = 0
    """Number of NAT gateways in the cluster's own network."""
    service_role: str = ""
    """ARN of the role with which CloudFormation deletes the stack."""
    environment: Environment | None = None
    setup: str = ""
    """A shell command that each node runs once, in the shipped folder, before the script."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the script's processes."""
    secrets: Mapping[str, int] = field(default_factory=dict)
    """Versions, by name, of variables whose values are in the Parameter Store alone."""
    build_secrets: Mapping[str, int] = field(default_factory=dict)
    """The same of variables that only the build of packages has."""
    validity: Validity = Validity()
    """Expiry of the certificates, as the last `up` left them."""
    read: tuple[str, ...] = ()
    """Further storage, as bucket/prefix, that workers may read."""
    write: tuple[str, ...] = ()
    """Further storage, as bucket/prefix, that workers may read and write."""
    mounts: tuple[str, ...] = ()
    """File systems that nodes mount, as `--mount` names them."""
    demands: AccountDemands = NO_DEMANDS
    folder: str = ""
    """The folder in which `up` was run; empty: not known."""
    virtual_ranks: bool = False
    """Whether the script deals each batch out in virtual ranks, as far as its text tells."""
    workers_by_type: Mapping[str, int] = field(default_factory=dict)
    """Workers of a node by its type, where these differ and the user does not say how many."""
    gpus: int = 0
    """How many GPUs each worker node has, by its type; 0: none, or not known."""
    protocol: ProtocolVersion = PROTOCOL
    """The protocol of the last `up`."""
    disk_gib: int = 100
    """Size of a worker's root disk, which is billed; by default that of version 0.1."""
    disk_mib_s: int = 125
    """Throughput of a worker's root disk, of which more than 125 MiB/s are billed."""
    metrics_port: int = 0
    """The port at which nodes serve metrics, on their private address; 0: they serve none."""
    notify: Mapping[str, int] = field(default_factory=dict)
    """Versions, by name, of the receivers of notifications, whose URLs are secret."""
    regions: Regions | None = None
    """Where the job moves by itself; None: nowhere."""
    digest: str = ""
    """When receivers are told how the job is doing: a time of day (UTC), as HH:MM; empty: never."""

    @property
    def mixes(self) -> bool:
        """Whether nodes may be of unlike types: each computes as many virtual ranks as it can.

        With `--exact` their kernels have to be the same.
        """
        return self.virtual_ranks and not self.settings.exact

    def workers_on(self, type: str) -> int:
        """Return how many workers a node of this instance type has."""
        return self.workers_by_type.get(type, self.settings.workers)

    def gpus_on(self, type: str) -> int:
        """Return how many GPUs it has at least; 0: none, or not known."""
        return self.workers_by_type.get(type, self.gpus) if self.gpus else 0

    @property
    def release(self) -> str:
        """The hash of everything that a node's workers are started from."""
        parts = (
            self.script,
            self.args,
            self.code,
            asdict(self.environment) if self.environment else None,
            self.setup,
            self.container,
            dict(self.env),
            dict(self.secrets),
            self.settings.workers,
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
