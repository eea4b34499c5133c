"""The job: what to run, how many nodes, and how it stands."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from spotelastic.model.interval import Interval
from spotelastic.model.node import Node
from spotelastic.model.validity import Validity

RankPolicy = Literal["stable", "pinned"]
JobState = Literal["pending", "running", "succeeded", "failed", "stopped", "timed out"]
ENDED = frozenset({"succeeded", "failed", "stopped", "timed out"})
ALLOW_UNCOMMITTED = "SPOTELASTIC_ALLOW_UNCOMMITTED"
"""Variable of workers: with 1 a run succeeds whose last step could not be committed."""
MOST_TEXT = 16384
"""Characters of a failure's message, and of its traceback; etcd refuses a value above 1.5 MB."""
OnDemand = Literal["never", "fallback"]
Spreading = Literal["pack", "spread"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the round decision needs to know; one key, changed by whoever owns the job."""

    min_nodes: int
    max_nodes: int
    workers: int = 1
    """On this node; those of others may have more or fewer."""
    max_restarts: int = 3
    gang: bool = False
    """Fail the job as a whole when a node is lost."""
    rank_policy: RankPolicy = "stable"
    """pinned: a node has the slot that its --node-rank names, for as long as it lives."""
    lease: float = 2.0
    quiet: float = 0.5
    """Seconds without a further arrival before arrivals form a round."""
    seen_within: float = 0.3
    ready_within: float = 30.0
    stall_timeout: float = 0.0
    """Seconds without a step after which a round is replaced; 0: never."""
    snapshot_every: Interval = Interval()
    """Between saves into memory, and"""
    checkpoint_every: Interval = Interval()
    """between commits in the object store."""
    keep_last: int = 3
    """The newest so many checkpoints are kept,"""
    keep_every: int = 0
    """and those whose step is a multiple of this; 0: none."""
    exit_barrier: float = 300.0
    """Seconds that a node whose workers have finished waits for those of the others."""
    code: str = ""
    """Hash of what nodes must run: of the code, or of the job's `release`."""

    def difference(self, other: "Settings") -> str | None:
        """The first flag in which two nodes of a run differ, naming both sides; None: they agree.

        Code is compared as what a node has, not as what it was told (`Fingerprint`); the number of
        workers is each node's own.
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
            "--exit-barrier-timeout": f"{self.exit_barrier:g}",
            "lease": f"{self.lease:g} s",
            "quiet": f"{self.quiet:g} s",
            "seen-within": f"{self.seen_within:g} s",
            "ready-within": f"{self.ready_within:g} s",
            "--stall-timeout": f"{self.stall_timeout:g} s",
        }


@dataclass(frozen=True, slots=True)
class Reference:
    """The node of a run that all others must match, and what it was started with."""

    node: Node
    settings: Settings

    def refusal(self, node: Node, settings: Settings) -> str | None:
        """Why the node does not match, naming both sides; None where it does."""
        difference = node.fingerprint.difference(self.node.fingerprint)
        difference = difference or settings.difference(self.settings)
        if difference is None:
            return None
        return f"node {node.id} does not match node {self.node.id} of this run: {difference}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that failed, as its agent saw it."""

    id: str
    node: str
    round: str
    rank: int
    local_rank: int
    at: float
    exit_code: int
    """Negative: ended by that signal."""
    message: str = ""
    traceback: str = ""
    log: str = ""
    """Path of the rank's log on its node."""
    stalled: bool = False
    """It did not end: no worker of the node executed a step any more. `at` is its last step's."""

    def storable(self) -> "Failure":
        """As etcd takes it, whatever was raised: the rest is in the log."""
        return replace(self, message=beginning(self.message), traceback=_end(self.traceback))


def beginning(text: str) -> str:
    """So much of the text as etcd takes, marked where it is cut."""
    cut = len(text) - MOST_TEXT
    return _encodable(text if cut <= 0 else f"{text[:MOST_TEXT]} [{cut} characters more]")


def _end(text: str) -> str:
    cut = len(text) - MOST_TEXT
    return _encodable(text if cut <= 0 else f"[{cut} characters before]\n{text[-MOST_TEXT:]}")


def _encodable(text: str) -> str:
    """Bytes of a file's name that are no UTF-8 come as lone surrogates, which no JSON holds."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Job:
    """The job's state: one key without a lease."""

    state: JobState
    at: float
    reason: str = ""
    final_step: int = 0
    failure: Failure | None = None
    """The first failing rank, when the state is "failed"."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job is to end once its last step is committed; one key without a lease."""

    state: JobState
    """stopped or timed out."""
    at: float
    """When that was asked for."""
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """All workers of one member ended well, after their final commit; never leased."""

    node: str
    round: str
    at: float
    end_step: int = 0
    first_step_at: float = 0.0
    last_step_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What may be bought for the job."""

    on_demand: OnDemand = "never"
    """fallback: what is missing to min, once spot has been short of it for `spot_patience`."""
    base: int = 0
    """On-demand nodes that it has at all times."""
    spot_patience: float = 600.0
    """Seconds."""
    zones: Spreading = "pack"
    """pack: all nodes in one zone; spread: in all that have them."""
    max_price: float | None = None
    """US dollars an hour above which no spot node is launched, of whichever type."""
    max_cost: float | None = None
    """US dollars that the cluster may cost until the job ends, control nodes included."""
    deadline: float | None = None
    """When the job ends, done or not; seconds since the epoch."""
    within: float | None = None
    """Seconds from when that was asked for: asked for again, it is the same deadline."""
    keep_failed: bool = False
    """The node whose worker failed the job stays for as long as the control nodes do."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The packages that a script needs, as a file of its folder lists them."""

    kind: Literal["uv", "pip", "conda"]
    file: str
    """Path within the shipped folder."""
    key: str
    """Hash of all that it is made from; nodes add what they are."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What `up` ships in the bucket (`job.json`), read by every booting instance."""

    cluster: str
    run: str
    """Name of the run: its checkpoints live under it, across clusters."""
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
    etcd_version: str = ""
    """The release that control nodes install; empty: one is there already."""
    container: str = ""
    """The image whose container workers run in; empty: in none."""
    log_group: str = ""
    queue: str = ""
    """Name of the queue that AWS's events arrive on."""
    worker_group: str = ""
    """Name of the Auto Scaling group of workers."""
    instance_types: tuple[str, ...] = ()
    created_at: float = 0.0
    """When `up` was run last, and"""
    born_at: float = 0.0
    """when the cluster was made, by the clocks of who ran them; 0: not known."""
    capacity: Capacity = Capacity()
    linger: float | None = 600.0
    """Seconds that the cluster stays after the job has ended; None: until it is taken down."""
    vpc: str = ""
    """The user's network that it lies in; empty: one of its own."""
    subnets: tuple[str, ...] = ()
    """Of that network."""
    nat_gateways: int = 0
    """Of the cluster's own network."""
    service_role: str = ""
    """ARN of the role that CloudFormation deletes the stack with."""
    environment: Environment | None = None
    setup: str = ""
    """A shell command that each node runs once, in the shipped folder, before the script."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the script's processes."""
    secrets: Mapping[str, int] = field(default_factory=dict)
    """Variables whose values only the Parameter Store has: name -> version."""
    validity: Validity = Validity()
    """Of the certificates, as the last `up` left them."""
    read: tuple[str, ...] = ()
    """bucket/prefix of what workers may read besides; and"""
    write: tuple[str, ...] = ()
    """what they may read and write."""
    folder: str = ""
    """Where `up` was run; empty: not known."""

    @property
    def release(self) -> str:
        """Hash of everything that a node's workers are started from."""
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
