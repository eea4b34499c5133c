"""Checks a `JobConfig`, and turns it into the job that the cluster is to have.

It checks everything that can be known to be wrong before anything starts.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotelastic import validation
from spotelastic.aws.artifacts import code_archive
from spotelastic.aws.base import boot_variables
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.demands import boundary, read_tags
from spotelastic.aws.base.names import (
    CLIENT_PORT,
    CONTROL_TYPE,
    MEMBERS,
    PEER_PORT,
    Names,
    members_of,
)
from spotelastic.aws.compute import reservations
from spotelastic.aws.node import mounts
from spotelastic.aws.planning.encryption_key import data_keys
from spotelastic.aws.planning.plan import PLACED_AND_SPREAD, ClusterSpec
from spotelastic.aws.planning.survey import Survey, survey
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.aws.security.secrets import check_sizes
from spotelastic.client.config import variables
from spotelastic.client.config.capacity_policy import (
    capacity,
    keep_deadline,
    seconds_left,
    with_deadline,
)
from spotelastic.client.config.job_code import CodeSource, FolderCode
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.moving_policy import regions
from spotelastic.client.targets.choice import chosen
from spotelastic.clock import wall
from spotelastic.errors import UsageError
from spotelastic.model.job import (
    ALLOW_UNCOMMITTED,
    AccountDemands,
    Capacity,
    JobSpec,
    Settings,
)
from spotelastic.notifications import urls


@dataclass(frozen=True, slots=True)
class ValidatedJob:
    """A job that has passed all checks that need no cloud."""

    config: JobConfig
    spec: JobSpec
    """The job as the cluster is to have it. It lacks what only the account tells: where its
    storage, etcd and groups are, and the instance types and workers that are not named."""
    archive: code_archive.Archive
    requirement: Requirement
    secrets: Mapping[str, str]
    build_secrets: Mapping[str, str] = field(default_factory=dict)
    notify: Mapping[str, str] = field(default_factory=dict, repr=False)
    """URLs of the receivers of notifications, by names that are not secret."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.spec.cluster

    def beside(self, known: JobSpec) -> "ValidatedJob":
        """Return the job as it changes a cluster that is up.

        It keeps the cluster's network and lease, its types unless others are named, and its
        deadline if the same time is given again.

        Raises `UsageError` for another lease: nodes that train hold theirs until they end.
        """
        lease = known.settings.lease
        if self.config.lease not in (None, lease):
            raise UsageError(
                f"--lease {self.config.lease:g}: {self.name} was made with a lease of {lease:g} s: "
                "take it down first, or choose another --name"
            )
        self._check_control(known)
        types = self.spec.instance_types or known.instance_types
        kept = keep_deadline(self.spec.capacity, known.capacity)
        spec = replace(
            self.spec,
            capacity=kept,
            instance_types=types,
            etcd_members=known.etcd_members,
            control_type=known.control_type,
            vpc=known.vpc,
            subnets=known.subnets,
            settings=replace(
                self.spec.settings, lease=lease, seen_within=known.settings.seen_within
            ),
        )
        return replace(self, spec=spec)

    def _check_control(self, known: JobSpec) -> None:
        """Raise `UsageError` for other control nodes than the cluster was made with."""
        config = self.config
        for flag, wanted, its in (
            ("control", config.control, len(members_of(known))),
            ("control-type", config.control_type, known.control_type),
        ):
            if wanted not in (None, its):
                raise UsageError(
                    f"--{flag} {wanted}: {self.name} was made with {its}: take it down first, or "
                    "choose another --name"
                )

    def survey(self, aws: Aws, known: JobSpec | None = None) -> Survey:
        """Look up what an account offers for the job; `known` is that of its cluster."""
        return survey(
            aws,
            self.spec,
            self.requirement,
            placed=bool(self.config.placement),
            disk=self.config.disk,
            key=self.config.kms_key or "",
            bucket=self.config.bucket or "",
            known=known,
        )

    def cluster(self, found: Survey) -> ClusterSpec:
        """Return the cluster that has the job on the nodes that the survey has chosen.

        etcd is part of its machine images, and it has the default network.
        """
        settings = self.spec.settings
        by_type = {kind.name: kind.workers for kind in found.types}
        workers = settings.workers or min(by_type.values())
        differ = not settings.workers and len({*by_type.values()}) > 1
        return ClusterSpec(
            job=replace(
                self.spec,
                capacity=replace(self.spec.capacity, reservations=found.reservations),
                instance_types=tuple(kind.name for kind in found.types),
                settings=replace(settings, workers=workers),
                workers_by_type=by_type if differ else {},
            ),
            archive=self.archive.data,
            secrets=self.secrets,
            build_secrets=self.build_secrets,
            notify=self.notify,
            zones=tuple(zone.name for zone in found.ranking),
            placement="cluster" if self.config.placement else "",
            bucket=self.config.bucket or "",
            disk=self.config.disk,
            key=self.config.kms_key or "",
            force=self.config.force,
        )


def check(config: JobConfig, folder: Path | CodeSource) -> ValidatedJob:
    """Return the job of the script in `folder`, or wherever else the code comes from.

    Raises `UsageError` and `EnvironmentFailure`.
    """
    source = FolderCode(folder) if isinstance(folder, Path) else folder
    chosen(config).check_system()
    config = chosen(config).applicable(config)
    script = source.script(config)
    validation.sizes(minimum=config.min, maximum=config.most, per_node=config.nproc_per_node)
    _check_numbers(config)
    name = Names(config.name or config.resume or validation.default_name(Path(script))).cluster
    _check_combination(config)
    _check_machine(config)
    bought = _capacity(config)
    settings = _settings(config, bought)
    env, secrets = variables.variables(config.env, config.env_file, config.secret, os.environ)
    check_sizes(secrets)
    env, build_secrets = variables.build_secrets(config.build_secret, env, secrets, os.environ)
    check_sizes(build_secrets, "--build-secret")
    notify = _notify(config, {**os.environ, **env, **secrets, **build_secrets})
    env = {name: value for name, value in env.items() if name not in config.notify}
    if config.allow_uncommitted:
        env = {**env, ALLOW_UNCOMMITTED: "1"}
    code = source.code(config, script)
    spec = JobSpec(
        cluster=name,
        run=config.resume or "",
        script=script,
        args=tuple(config.args),
        code=code.archive.sha256,
        settings=settings,
        storage="",
        etcd=(),
        etcd_members=MEMBERS[: config.control or len(MEMBERS)],
        control_type=config.control_type or CONTROL_TYPE,
        container=config.image or "",
        instance_types=tuple(config.instance_types),
        capacity=bought,
        linger=validation.linger(str(config.linger)),
        vpc=config.vpc or "",
        subnets=tuple(config.subnets),
        environment=code.environment,
        setup=config.setup or "",
        env=env,
        secrets=dict.fromkeys(secrets, 0),
        build_secrets=dict.fromkeys(build_secrets, 0),
        demands=_demands(config),
        read=variables.folders("read", config.read),
        write=variables.folders("write", config.write),
        mounts=mounts.read_all(config.mount),
        folder=code.folder,
        metrics_port=config.metrics_port or 0,
        notify=dict.fromkeys(notify, 0),
        regions=regions(config),
        digest=config.notify_digest or "",
    )
    memory = 0 if config.gpu_memory is None else validation.gpu_memory(config.gpu_memory)
    wanted = Requirement(gpus=config.gpus or 0, gpu_memory=memory)
    return ValidatedJob(config, spec, code.archive, wanted, secrets, build_secrets, notify)


GIVEN = (
    *("worker_profile", "control_profile", "stack_role", "security_group"),
    *("worker_image", "control_image", "proxy", "index_url"),
)
"""Options that a job holds under the same names."""


def _demands(config: JobConfig) -> AccountDemands:
    """Return what the account demands and gives. Its keys are looked up later."""
    found = AccountDemands(
        tags=read_tags(config.tag),
        boundary=boundary(config.permissions_boundary),
        data_keys=data_keys(config.data_key),
        no_proxy=tuple(config.no_proxy),
        **{name: getattr(config, name) or "" for name in GIVEN},
    )
    boot_variables.check(found)
    return found


def _notify(config: JobConfig, variables: Mapping[str, str]) -> dict[str, str]:
    """Return where notifications go. A variable that holds a URL is none of the script's."""
    found = urls.named(config.notify, variables)
    check_sizes(found, "--notify")
    if config.local and urls.topics(found.values()):
        raise UsageError(
            "--notify sns:…: the local cloud has no topics: give a URL, such as json://127.0.0.1"
        )
    digest = config.notify_digest
    if digest is not None and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", digest):
        raise UsageError(f"--notify-digest {digest}: expected a time of day (UTC), such as 06:30")
    if digest and not found:
        raise UsageError("--notify-digest: there is no receiver to send it to: add --notify")
    return found


def _settings(config: JobConfig, bought: Capacity) -> Settings:
    cloud = chosen(config)
    settings = Settings(
        min_nodes=config.min,
        max_nodes=config.most,
        workers=config.nproc_per_node or cloud.workers,
        max_restarts=config.max_restarts,
        gang=config.gang,
        rank_policy="on-demand-first" if bought.base else "stable",
        stall_timeout=config.stall_timeout,
        exit_barrier=config.exit_barrier_timeout,
        snapshot_every=validation.interval("--snapshot-every", str(config.snapshot_every)),
        checkpoint_every=validation.interval("--checkpoint-every", str(config.checkpoint_every)),
        keep_last=config.keep_last,
        keep_every=config.keep_every,
        outputs=validation.outputs(config.output, Path.cwd()),
        replicate=validation.replication(config.replicate),
        guard=config.guard,
        audit=validation.audit(config.audit),
        rehearse=config.rehearse,
        exact=config.exact,
        replace_slow=config.replace_slow,
    )
    fitted = cloud.fitted(settings)
    return fitted if config.lease is None else replace(fitted, lease=config.lease)


def _capacity(config: JobConfig) -> Capacity:
    bought = capacity(
        config.on_demand,
        config.spot_patience,
        config.most,
        zones=config.zones,
        max_price=config.max_price,
        max_cost=config.max_cost,
        keep_failed=config.keep_failed,
    )
    bought = replace(bought, reservations=reservations.named(config.reservations))
    return with_deadline(bought, seconds_left(config.deadline), wall())


def _check_machine(config: JobConfig) -> None:
    """Check what this machine has to offer: files, packages, and what the cloud needs of it."""
    validation.writable(report=config.report, curve=config.curve)
    if config.curve and Path(config.curve).suffix.lower() != ".svg":
        raise UsageError(f"--curve draws an SVG: name it {Path(config.curve).with_suffix('.svg')}")
    chosen(config).check_machine(config)


LONGEST_LEASE = 60.0
"""Seconds. A node that nothing else tells of keeps the others waiting for so long."""


LAST_PORT = 65535


def _check_ports(config: JobConfig) -> None:
    port = config.metrics_port
    if port is not None and port > LAST_PORT:
        raise UsageError(f"--metrics-port {port}: the last port is {LAST_PORT}")
    if port in (CLIENT_PORT, PEER_PORT):
        raise UsageError(
            f"--metrics-port {port}: etcd of the control nodes has that port: choose another one"
        )


def _check_numbers(config: JobConfig) -> None:
    _check_ports(config)
    if config.lease is not None and config.lease > LONGEST_LEASE:
        raise UsageError(
            f"--lease {config.lease:g}: expected at most {LONGEST_LEASE:g} s: the other nodes wait "
            "that long for one that is gone"
        )
    if config.control not in (None, 1, len(MEMBERS)):
        raise UsageError(
            f"--control {config.control}: expected 3 or 1: etcd needs most of its members, and two "
            "of them outlive no more than one does"
        )
    validation.at_least_one(keep_last=config.keep_last)
    if config.disk is not None:
        validation.at_least_one(disk=config.disk)
    validation.not_negative(
        keep_every=config.keep_every,
        max_restarts=config.max_restarts,
        stall_timeout=config.stall_timeout,
        exit_barrier_timeout=config.exit_barrier_timeout,
    )


def _check_combination(config: JobConfig) -> None:
    if config.json and not config.plan:
        raise UsageError("--json needs --plan; for a running job use `spotelastic status --json`")
    chosen(config).check(config)
    if config.instance_types and (config.gpus or config.gpu_memory):
        raise UsageError(
            f"--instance-types {','.join(config.instance_types)}: name types, or let --gpus and "
            "--gpu-memory choose them: remove one of the two"
        )
    if config.drill and config.most < 2:
        raise UsageError("--drill takes nodes away from a running job: give at least --max 2")
    if config.replace_slow and config.most == config.min:
        raise UsageError(
            f"--replace-slow: the job never has a node to spare with --min {config.min}: "
            "give a larger --max, or a smaller --min"
        )
    if config.placement and config.zones == "spread":
        raise UsageError(PLACED_AND_SPREAD)
    if bool(config.vpc) != bool(config.subnets):
        raise UsageError(
            "an existing network needs both flags: --vpc vpc-... --subnets subnet-...,subnet-..."
        )
    for flag, given in (("security-group", config.security_group), ("proxy", config.proxy)):
        if given and not config.vpc:
            raise UsageError(
                f"--{flag} {given}: it is of one network: give that as well, --vpc vpc-... "
                "--subnets subnet-...,subnet-..."
            )
    for flag in ("drill", "report", "curve"):
        if (config.detach or config.plan) and getattr(config, flag):
            wrong = "plan" if config.plan else "detach"
            raise UsageError(f"--{flag} needs a command that stays until the end: remove --{wrong}")
    if config.report and Path(config.report).suffix == ".html":
        raise UsageError(
            f"--report {config.report}: names the file for JSON, beside which the page is written: "
            f"give --report {Path(config.report).with_suffix('.json')}"
        )
