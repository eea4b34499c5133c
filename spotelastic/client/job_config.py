"""Defines the request that `up` is given, and validates it before anything starts."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spotelastic import validation
from spotelastic.aws.artifacts import code_archive, requirements
from spotelastic.aws.base.names import CLIENT_PORT, PEER_PORT, Names
from spotelastic.aws.planning.plan import PLACED_AND_SPREAD
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.client import variables
from spotelastic.client.capacity_policy import capacity, seconds_left, with_deadline
from spotelastic.clock import wall
from spotelastic.errors import UsageError
from spotelastic.model.job import ALLOW_UNCOMMITTED, Capacity, Environment, Settings

SHARED_LEASE, SHARED_SEEN_WITHIN = 3.0, 1.0
"""Lease and detection time on the local cloud, in seconds.

Local nodes share this machine's cores: a node that starts can hold up the others for longer than it
would on an instance of its own.
"""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The values of the command line of `up`."""

    script: Path
    args: tuple[str, ...]
    local: bool
    region: str | None
    minimum: int
    maximum: int
    name: str | None
    types: tuple[str, ...]
    """Instance types; if empty, the cluster's present ones, or the cheapest GPU types in quota."""
    nproc_per_node: int | None
    snapshot_every: str
    checkpoint_every: str
    keep_last: int
    keep_every: int
    max_restarts: int
    gang: bool
    stall_timeout: float
    exit_barrier_timeout: float
    drill: bool
    detach: bool
    keep: bool
    report: Path | None
    curve: Path | None
    plan: bool = False
    as_json: bool = False
    """Print the plan as JSON, and nothing else to stdout."""
    resume: str | None = None
    fresh: bool = False
    allow_uncommitted: bool = False
    bucket: str | None = None
    placement: str = ""
    vpc: str = ""
    subnets: tuple[str, ...] = ()
    environment: str | None = None
    setup: str = ""
    image: str = ""
    env: tuple[str, ...] = ()
    env_file: Path | None = None
    secrets: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    on_demand: str = "never"
    spot_patience: float = 600.0
    max_price: float | None = None
    max_cost: float | None = None
    deadline: str | None = None
    linger: str = "10m"
    keep_failed: bool = False
    gpus: int | None = None
    gpu_memory: str | None = None
    zones: str = "pack"
    yes: bool = False
    """Ask for no confirmation."""


@dataclass(frozen=True, slots=True)
class ValidatedJob:
    """A request that has been checked."""

    name: str
    script: str
    archive: code_archive.Archive
    settings: Settings
    capacity: Capacity
    environment: Environment | None
    requirement: Requirement
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    read: tuple[str, ...]
    """Folders, as bucket/prefix, that the script may read besides its own."""
    write: tuple[str, ...]
    """Folders, as bucket/prefix, that the script may read and write besides its own."""
    linger: float | None
    """Seconds that the cluster stays after its job; None: forever."""
    folder: str
    """The working folder, as an absolute path."""


def check(request: JobRequest, folder: Path) -> ValidatedJob:
    """Validate everything that can be known to be wrong before anything starts."""
    validation.linux()
    validation.script(request.script, folder)
    script = validation.within(request.script, folder)
    validation.sizes(
        minimum=request.minimum,
        maximum=request.maximum,
        per_node=request.nproc_per_node,
    )
    _check_numbers(request)
    name = request.name or request.resume or validation.default_name(request.script)
    name = Names(name).cluster
    _check_combination(request)
    validation.writable(report=request.report, curve=request.curve)
    if request.curve:
        validation.installed("matplotlib", "--curve needs matplotlib", "local")
    if request.local:
        validation.local_parts()
        validation.local_types(request.types)
        validation.ports(CLIENT_PORT, PEER_PORT)
        workers = request.nproc_per_node or 1
        validation.room(request.maximum, workers, folder=Path(tempfile.gettempdir()))
    settings, bought = _settings(request), _capacity(request)
    env, secrets = variables.variables(request.env, request.env_file, request.secrets, os.environ)
    if request.allow_uncommitted:
        env = {**env, ALLOW_UNCOMMITTED: "1"}
    archive = code_archive.pack(folder)
    return ValidatedJob(
        name=name,
        script=script,
        archive=archive,
        settings=settings,
        capacity=bought,
        environment=requirements.find(folder, request.environment, archive.sha256),
        requirement=_requirement(request),
        env=env,
        secrets=secrets,
        read=variables.folders("read", request.read),
        write=variables.folders("write", request.write),
        linger=validation.linger(request.linger),
        folder=str(folder.resolve()),
    )


def _settings(request: JobRequest) -> Settings:
    settings = Settings(
        min_nodes=request.minimum,
        max_nodes=request.maximum,
        # 0: as many as the instance type has GPUs. A local node is a process without GPUs.
        workers=request.nproc_per_node or (1 if request.local else 0),
        max_restarts=request.max_restarts,
        gang=request.gang,
        stall_timeout=request.stall_timeout,
        exit_barrier=request.exit_barrier_timeout,
        snapshot_every=validation.interval("--snapshot-every", request.snapshot_every),
        checkpoint_every=validation.interval("--checkpoint-every", request.checkpoint_every),
        keep_last=request.keep_last,
        keep_every=request.keep_every,
    )
    if request.local:
        return replace(settings, lease=SHARED_LEASE, seen_within=SHARED_SEEN_WITHIN)
    return settings


def _capacity(request: JobRequest) -> Capacity:
    bought = capacity(
        request.on_demand,
        request.spot_patience,
        request.maximum,
        zones=request.zones,
        max_price=request.max_price,
        max_cost=request.max_cost,
        keep_failed=request.keep_failed,
    )
    return with_deadline(bought, seconds_left(request.deadline), wall())


def _requirement(request: JobRequest) -> Requirement:
    memory = request.gpu_memory
    return Requirement(
        gpus=request.gpus or 0,
        gpu_memory=0 if memory is None else validation.gpu_memory(memory),
    )


def _check_numbers(request: JobRequest) -> None:
    validation.at_least_one(keep_last=request.keep_last)
    validation.not_negative(
        keep_every=request.keep_every,
        max_restarts=request.max_restarts,
        stall_timeout=request.stall_timeout,
        exit_barrier_timeout=request.exit_barrier_timeout,
    )


def _check_combination(request: JobRequest) -> None:
    if request.drill and not request.local:
        raise UsageError("--drill interrupts nodes of the local cloud: add --local")
    if request.image and request.local:
        raise UsageError(
            f"--image {request.image}: nodes of the local cloud are processes: remove --local"
        )
    if request.types and (request.gpus or request.gpu_memory):
        raise UsageError(
            f"--instance-types {','.join(request.types)}: name types, or let --gpus and "
            "--gpu-memory choose them: remove one of the two"
        )
    if request.keep_failed and request.local and not (request.detach or request.keep):
        raise UsageError(
            "--keep-failed: a local cluster ends with the command that made it: add --detach or "
            "--keep"
        )
    if request.drill and request.maximum < 2:
        raise UsageError("--drill takes nodes away from a running job: give at least --max 2")
    if request.placement not in ("", "cluster"):
        raise UsageError(f"--placement {request.placement}: expected cluster")
    if request.placement and request.zones == "spread":
        raise UsageError(PLACED_AND_SPREAD)
    if bool(request.vpc) != bool(request.subnets):
        raise UsageError(
            "an existing network needs both flags: --vpc vpc-... --subnets subnet-...,subnet-..."
        )
    for flag in ("drill", "report", "curve"):
        if (request.detach or request.plan) and getattr(request, flag):
            wrong = "plan" if request.plan else "detach"
            raise UsageError(f"--{flag} needs a command that stays until the end: remove --{wrong}")
