"""The job: what to run, how many nodes, and how it stands."""

from dataclasses import dataclass
from typing import Literal

from spotelastic.model.round import Schedule

JobState = Literal["pending", "running", "succeeded", "failed", "stopped"]
ENDED = frozenset({"succeeded", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What the round decision needs to know; one key, changed by whoever owns the job."""

    min_nodes: int
    max_nodes: int
    workers: int = 1
    """Workers per node."""
    max_restarts: int = 3
    gang: bool = False
    """Fail the job as a whole when a node is lost."""
    pinned: bool = False
    """Honour --node-rank."""
    lease: float = 2.0
    quiet: float = 0.5
    """Seconds without a further arrival before arrivals form a round."""
    seen_within: float = 0.3
    ready_within: float = 30.0
    schedule: Schedule = Schedule()
    code: str = ""
    """Hash of the code that nodes must run."""


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
class Finished:
    """All workers of one member ended well, after their final commit; never leased."""

    node: str
    round: str
    at: float
    end_step: int = 0
    first_step_at: float = 0.0
    last_step_at: float = 0.0


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
    log_group: str = ""
    queue: str = ""
    """Name of the queue that AWS's events arrive on."""
    worker_group: str = ""
    """Name of the Auto Scaling group of workers."""
    instance_types: tuple[str, ...] = ()
    created_at: float = 0.0
