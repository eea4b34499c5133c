"""Defines `JobConfig`, the one description of a job that `up` is given.

Each field is declared once, with `option`: its flag, key and variable have its name. See
CONTRIBUTING for how a field is added.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

from spotelastic.client.config.capacity_policy import ON_DEMAND, ON_DEMAND_PATTERN
from spotelastic.client.config.option import Effect, option, read_fields
from spotelastic.client.config.panels import PANELS
from spotelastic.model.counting import duration
from spotelastic.model.interval import TIME
from spotelastic.model.job import ALLOW_UNCOMMITTED
from spotelastic.model.replication import RATE

SCRIPT = "train.py"
"""The script that is used if none is given."""
CLUSTER, UP, SCALE, COMMAND = Effect
JOB, MACHINES, MONEY, SAFETY, WATCHING, ENVIRONMENT, NETWORK, AFTER = PANELS
INTERVAL = rf"auto|\d+|{TIME}"


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A job: the script, the nodes that train it, their price limits, and what is kept.

    The fields are the flags of `spotelastic up`, with underscores. Only `script` may be given
    without its name:

        JobConfig("train.py", min=2, max=8, env={"EPOCHS": "3"})

    Raises `UsageError` for a value that its flag would not take either. What contradicts the
    folder, the machine or the account is found later, by `up`.
    """

    script: str | Path | None = option(
        None,
        "A Python script in the current folder. The folder is shipped to the nodes.",
        UP,
        JOB,
        argument=True,
        shown_default=SCRIPT,
        stored=lambda job: job.script,
    )
    _: KW_ONLY
    args: Sequence[str] = option(
        (),
        "Arguments of the script: everything after it.",
        UP,
        JOB,
        argument=True,
        stored=lambda job: " ".join(job.args),
    )
    local: bool = option(
        False,
        "Use a cloud emulated on this machine (its bucket: ~/.spotelastic/s3), or AWS.",
        CLUSTER,
        MACHINES,
        off="aws",
    )
    region: str | None = option(
        None,
        "AWS region; no effect with --local.",
        CLUSTER,
        MACHINES,
        metavar="NAME",
        shown_default="from AWS's configuration",
    )
    min: int = option(
        1,
        "Fewest nodes to train with.",
        SCALE,
        MACHINES,
        metavar="N",
        stored=lambda job: job.settings.min_nodes,
    )
    max: int | None = option(
        None,
        "Most nodes to train with.",
        SCALE,
        MACHINES,
        metavar="N",
        shown_default="--min",
        stored=lambda job: job.settings.max_nodes,
    )
    name: str | None = option(
        None,
        "Name of the cluster. The same name continues from its checkpoints.",
        CLUSTER,
        JOB,
        shown_default="from the script",
    )
    resume: str | None = option(
        None, "Continue an earlier run in a new cluster.", CLUSTER, JOB, metavar="RUN"
    )
    fresh: bool = option(
        False, "Begin at step 0; earlier checkpoints are left alone.", COMMAND, JOB, in_file=False
    )
    plan: bool = option(
        False,
        "Only show what would be created or changed, and its price.",
        COMMAND,
        JOB,
        in_file=False,
    )
    yes: bool = option(
        False,
        "Ask for no confirmation: of the price on AWS, or to replace another script's job.",
        COMMAND,
        JOB,
        short="y",
    )
    json: bool = option(False, "Print the plan as JSON.", COMMAND, JOB, in_file=False)
    instance_types: Sequence[str] = option(
        (),
        "Instance types for workers, preferred first (also: --instance-type).",
        UP,
        MACHINES,
        metavar="T[,T...]",
        commas=True,
        shown_default="the cheapest GPU types in quota",
        stored=lambda job: ",".join(job.instance_types),
    )
    gpus: int | None = option(
        None,
        "In place of types: GPUs per node.",
        CLUSTER,
        MACHINES,
        metavar="N",
        least=1,
        shown_default="any number",
    )
    gpu_memory: str | None = option(
        None,
        "In place of types: least memory per GPU, e.g. 40GB.",
        CLUSTER,
        MACHINES,
        metavar="SIZE",
    )
    zones: str = option(
        "pack",
        "Zone placement: pack (one zone) or spread (all zones).",
        UP,
        MACHINES,
        metavar="HOW",
        choices=("pack", "spread"),
        stored=lambda job: job.capacity.zones,
    )
    nproc_per_node: int | None = option(
        None,
        "Workers per node.",
        UP,
        MACHINES,
        metavar="N",
        shown_default="one per GPU",
        stored=lambda job: job.settings.workers,
    )
    snapshot_every: str | int = option(
        "auto",
        "Interval of snapshots in shared memory: steps (20), time (30s), or auto (by cost).",
        UP,
        SAFETY,
        metavar="STEPS|TIME",
        pattern=INTERVAL,
        stored=lambda job: job.settings.snapshot_every,
    )
    checkpoint_every: str | int = option(
        "auto",
        "Interval of checkpoints in the object store: steps (500), time (10m), or auto.",
        UP,
        SAFETY,
        metavar="STEPS|TIME",
        pattern=INTERVAL,
        stored=lambda job: job.settings.checkpoint_every,
    )
    keep_last: int = option(
        3,
        "How many of the newest checkpoints to keep.",
        UP,
        SAFETY,
        stored=lambda job: job.settings.keep_last,
    )
    keep_every: int = option(
        0,
        "Also keep checkpoints whose step is a multiple of this; 0: none.",
        UP,
        SAFETY,
        stored=lambda job: job.settings.keep_every,
    )
    replicate: str = option(
        "auto",
        "Keep shards that one node alone holds in another node's memory, too.",
        UP,
        SAFETY,
        metavar="auto|off|RATE",
        pattern=rf"auto|off|{RATE}",
        stored=lambda job: job.settings.replicate,
    )
    allow_uncommitted: bool = option(
        False,
        "Succeed even if the last step could not be committed.",
        UP,
        SAFETY,
        stored=lambda job: ALLOW_UNCOMMITTED in job.env,
    )
    max_restarts: int = option(
        3,
        "Restarts after failures of the script. Interruptions do not count.",
        UP,
        SAFETY,
        stored=lambda job: job.settings.max_restarts,
    )
    stall_timeout: float = option(
        0.0,
        "Restart the workers if no step completes for this long; 0: never.",
        UP,
        SAFETY,
        metavar="SECONDS",
        stored=lambda job: job.settings.stall_timeout,
    )
    exit_barrier_timeout: float = option(
        300.0,
        "How long a node that has finished waits for the other nodes.",
        UP,
        SAFETY,
        metavar="SECONDS",
        stored=lambda job: job.settings.exit_barrier,
    )
    lease: float | None = option(
        None,
        "How long a node that is not heard of counts as alive.",
        CLUSTER,
        SAFETY,
        metavar="SECONDS",
        least=2,
        shown_default="8, or 3 with --local",
    )
    gang: bool = option(
        False,
        "Fail the job when a node is lost.",
        UP,
        SAFETY,
        off="no-gang",
        stored=lambda job: job.settings.gang,
    )
    environment: str | None = option(
        None,
        "The packages that the script needs: uv.lock, requirements.txt or environment.yml.",
        UP,
        ENVIRONMENT,
        metavar="FILE|none",
        shown_default="the first of these that is here",
        stored=lambda job: job.environment,
        shows_values=False,
    )
    setup: str | None = option(
        None,
        "Shell command that each node runs before the script.",
        UP,
        ENVIRONMENT,
        metavar="CMD",
        stored=lambda job: job.setup,
    )
    image: str | None = option(
        None,
        "Container image, with Python and torch, that workers run in.",
        UP,
        ENVIRONMENT,
        metavar="IMAGE",
        stored=lambda job: job.container,
    )
    env: Sequence[str] | Mapping[str, str] = option(
        (),
        "Environment variable for the script. Can be repeated.",
        UP,
        ENVIRONMENT,
        metavar="NAME[=VALUE]",
        short="e",
        stored=lambda job: {**job.env, ALLOW_UNCOMMITTED: ""},
        shows_values=False,
    )
    env_file: str | Path | None = option(
        None, "File of variables, as NAME=VALUE lines.", UP, ENVIRONMENT, metavar="FILE"
    )
    secret: Sequence[str] = option(
        (),
        "Variable whose value is taken from here and kept out of logs and status.",
        UP,
        ENVIRONMENT,
        metavar="NAME",
        stored=lambda job: set(job.secrets),
        shows_values=False,
    )
    build_secret: Sequence[str] = option(
        (),
        "Variable for the build of packages alone, e.g. of a private index; NETRC: your ~/.netrc.",
        UP,
        ENVIRONMENT,
        metavar="NAME",
        stored=lambda job: set(job.build_secrets),
        shows_values=False,
    )
    read: Sequence[str] = option(
        (),
        "Another folder that the script may read. Can be repeated.",
        UP,
        ENVIRONMENT,
        metavar="s3://...",
        stored=lambda job: " ".join(job.read),
    )
    write: Sequence[str] = option(
        (),
        "Another folder that the script may read and write. Can be repeated.",
        UP,
        ENVIRONMENT,
        metavar="s3://...",
        stored=lambda job: " ".join(job.write),
    )
    bucket: str | None = option(
        None,
        "Your own bucket for code and checkpoints.",
        CLUSTER,
        ENVIRONMENT,
        shown_default="one per account and region",
    )
    placement: str | None = option(
        None,
        "Put all worker nodes into one placement group.",
        CLUSTER,
        MACHINES,
        metavar="cluster",
        choices=("cluster",),
    )
    disk: int | None = option(
        None,
        "Size of a worker's root disk in GiB.",
        CLUSTER,
        MACHINES,
        metavar="GIB",
        least=1,
        shown_default="100, or its image's size + 50",
    )
    vpc: str | None = option(
        None, "Use this existing VPC; needs --subnets.", CLUSTER, NETWORK, metavar="VPC"
    )
    subnets: Sequence[str] = option(
        (),
        "Subnets of that VPC for the nodes, one per zone.",
        CLUSTER,
        NETWORK,
        metavar="S[,S...]",
        commas=True,
    )
    tag: Sequence[str] | Mapping[str, str] = option(
        (),
        "Tag for everything that is made in the account. Can be repeated.",
        UP,
        NETWORK,
        metavar="KEY=VALUE",
        stored=lambda job: " ".join(f"{k}={v}" for k, v in sorted(job.demands.tags.items())),
    )
    permissions_boundary: str | None = option(
        None,
        "Permissions boundary of the roles that are made; no effect with --local.",
        UP,
        NETWORK,
        metavar="ARN",
        stored=lambda job: job.demands.boundary,
    )
    kms_key: str | None = option(
        None, "KMS key of disks, parameters and logs on AWS.", CLUSTER, NETWORK, metavar="KEY"
    )
    on_demand: str = option(
        "never",
        f"When to buy on-demand nodes: {ON_DEMAND}.",
        UP,
        MONEY,
        metavar="WHEN",
        pattern=ON_DEMAND_PATTERN,
        stored=lambda job: (
            f"base={job.capacity.base}" if job.capacity.base else job.capacity.on_demand
        ),
    )
    spot_patience: float = option(
        600.0,
        "Seconds below --min before on-demand nodes are bought.",
        UP,
        MONEY,
        least=0,
        stored=lambda job: duration(job.capacity.spot_patience),
    )
    max_price: float | None = option(
        None,
        "Highest price of a spot node, in US dollars per hour.",
        UP,
        MONEY,
        stored=lambda job: job.capacity.max_price,
    )
    max_cost: float | None = option(
        None,
        "Stop the job before it costs this many US dollars, control nodes included.",
        UP,
        MONEY,
        stored=lambda job: job.capacity.max_cost,
    )
    deadline: str | None = option(
        None,
        "Stop the job after this time, e.g. 90m or 8h, finished or not.",
        UP,
        MONEY,
        metavar="TIME",
        pattern=TIME,
        stored=lambda job: None if job.capacity.within is None else duration(job.capacity.within),
    )
    replace_slow: bool = option(
        False,
        "Replace a node that keeps the others waiting: it is slower than they, for minutes.",
        UP,
        MACHINES,
        off="no-replace-slow",
        stored=lambda job: job.settings.replace_slow,
    )
    drill: bool = option(
        False, "Interrupt nodes, to show recovery. Needs --local.", COMMAND, JOB, off="no-drill"
    )
    detach: bool = option(
        False, "Return as soon as the job trains.", COMMAND, JOB, off="no-detach", short="d"
    )
    keep: bool = option(
        False, "Leave the cluster up after its job, for --linger.", COMMAND, AFTER, off="no-keep"
    )
    linger: str | int = option(
        "10m",
        "How long a cluster that is left up stays after its job: 10m, 0, forever.",
        UP,
        AFTER,
        metavar="TIME|forever",
        pattern=rf"forever|0|{TIME}",
        stored=lambda job: "forever" if job.linger is None else duration(job.linger),
    )
    keep_failed: bool = option(
        False,
        "Keep the node whose worker failed the job, for the time of --linger.",
        UP,
        AFTER,
        off="no-keep-failed",
        stored=lambda job: job.capacity.keep_failed,
    )
    metrics_port: int | None = option(
        None,
        "Port at which nodes serve metrics for Prometheus, inside the cluster's network.",
        UP,
        WATCHING,
        metavar="PORT",
        least=1,
        stored=lambda job: job.metrics_port or None,
    )
    notify: Sequence[str] = option(
        (),
        "Tell of the job there, by a URL of Apprise's, sns:ARN, or a variable that has one.",
        UP,
        WATCHING,
        metavar="URL|NAME",
        stored=lambda job: set(job.notify),
        shows_values=False,
        hidden=True,
    )
    report: str | Path | None = option(
        None,
        "Write the report here, as JSON; beside it, as a page (.html).",
        COMMAND,
        JOB,
        metavar="FILE",
    )
    curve: str | Path | None = option(
        None, "Draw the loss curve here, as PNG.", COMMAND, JOB, metavar="FILE"
    )

    def __post_init__(self) -> None:
        read_fields(self)

    @classmethod
    def load(cls, folder: str | Path = ".", **given: Any) -> Self:
        """Return the job that `spotelastic up` would start in `folder`: its `spotelastic.toml`, the
        `SPOTELASTIC_*` variables, and the fields in `given`, which win over both.
        """
        from spotelastic.client.config import config_file

        return cls(**config_file.defaults(Path(folder), os.environ, cls) | given)

    @property
    def most(self) -> int:
        """Most nodes to train with: `max`, or `min` if it is not given."""
        return self.min if self.max is None else self.max
