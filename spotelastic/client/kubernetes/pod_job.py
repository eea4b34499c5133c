"""Turns a `PodConfig` into the job that manifests are made of (pure, but for --env-file)."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotelastic import validation
from spotelastic.client.config import variables
from spotelastic.client.config.capacity_policy import seconds_left
from spotelastic.client.config.job_config import SCRIPT
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.errors import UsageError
from spotelastic.kubernetes.job_as_pods import (
    PodJob,
    PodPlacement,
    PodResources,
    SecretKey,
)
from spotelastic.model.in_place import FIRST
from spotelastic.model.job import Settings

_TAINT = re.compile(
    r"(?P<key>[A-Za-z0-9./_-]+)(?:=(?P<value>[A-Za-z0-9._-]*))?"
    r"(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


def pod_job(config: PodConfig, environ: Mapping[str, str]) -> PodJob:
    """Return the job. The script is one of the image: it need not be here.

    `environ` has the values of variables that --env only names. Values of --secret are not looked
    for. Raises `UsageError`.
    """
    validation.sizes(minimum=config.min, maximum=config.most, per_node=config.nproc_per_node)
    validation.at_least_one(keep_last=config.keep_last)
    validation.not_negative(
        keep_every=config.keep_every,
        max_restarts=config.max_restarts,
        stall_timeout=config.stall_timeout,
        exit_barrier_timeout=config.exit_barrier_timeout,
    )
    script = Path(config.script or SCRIPT)
    name = config.name or validation.default_name(script)
    left = seconds_left(config.deadline)
    return PodJob(
        name=name,
        namespace=config.namespace or "",
        image=config.image or "",
        command=(script.as_posix(), *config.args),
        settings=_settings(config),
        storage=_storage(config, name),
        flags=("--allow-uncommitted",) if config.allow_uncommitted else (),
        workers=str(config.nproc_per_node or ""),
        env=_environment(config, environ),
        secrets={each: SecretKey(config.secrets_from or name, each) for each in config.secret},
        resources=_resources(config),
        placement=PodPlacement(
            node_selector=_pairs("--node-selector", config.node_selector),
            instance_types=tuple(config.instance_types),
            tolerations=tuple(map(toleration, config.toleration)),
            spread=config.zones == "spread",
        ),
        grace=config.grace_period,
        workdir=config.workdir or "",
        service_account=config.service_account or "",
        deadline=0 if left is None else math.ceil(left),
        queue=config.queue or "",
        metrics_port=config.metrics_port or 0,
        template=pod_template(config.pod_template),
    )


def pod_template(given: str | None) -> Mapping[str, Any]:
    """Return the template that --pod-template gives: JSON, or a file of JSON or YAML.

    Raises `UsageError`.
    """
    if not given:
        return {}
    is_text = given.lstrip().startswith("{")
    shown = "--pod-template" if is_text else f"--pod-template {given}"
    try:
        text = given if is_text else Path(given).read_text()
        found = json.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{shown}: cannot be read: {error}") from error
    if not isinstance(found, Mapping):
        raise UsageError(f"{shown}: expected the mappings metadata and spec")
    return found


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            "--pod-template: reading YAML needs the extra `kubernetes`: pip install "
            "'spotelastic[kubernetes]', or give JSON"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def toleration(text: str) -> dict[str, str]:
    """Return the toleration of a taint: KEY or KEY=VALUE, perhaps with :EFFECT."""
    found = _TAINT.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--toleration {text}: expected KEY or KEY=VALUE, perhaps with :NoSchedule"
        )
    key, value, effect = found["key"], found["value"], found["effect"]
    made = {"key": key, "operator": "Exists" if value is None else "Equal"}
    made |= {} if value is None else {"value": value}
    return made | ({"effect": effect} if effect else {})


def _settings(config: PodConfig) -> Settings:
    return Settings(
        min_nodes=config.min,
        max_nodes=config.most,
        max_restarts=config.max_restarts,
        gang=config.gang,
        stall_timeout=config.stall_timeout,
        exit_barrier=config.exit_barrier_timeout,
        snapshot_every=validation.interval("--snapshot-every", str(config.snapshot_every)),
        checkpoint_every=validation.interval("--checkpoint-every", str(config.checkpoint_every)),
        keep_last=config.keep_last,
        keep_every=config.keep_every,
        outputs=validation.outputs(config.output, Path.cwd()),
        replicate=validation.replication(config.replicate),
        rehearse=_rehearse(config),
    )


def _rehearse(config: PodConfig) -> str:
    if config.rehearse == FIRST:
        raise UsageError(
            "--rehearse first: on Kubernetes all pods are made together: run `spotelastic "
            "rehearse` in one of your image before"
        )
    return config.rehearse


def _storage(config: PodConfig, name: str) -> str:
    if config.storage:
        return config.storage
    if not config.bucket:
        raise UsageError(
            "no storage was given: name one that all pods reach, e.g. --storage s3://BUCKET/RUN"
        )
    return f"s3://{config.bucket}/{name}/checkpoints"


def _environment(config: PodConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not secret. One that is has its value in a Secret alone."""
    plain, _ = variables.variables(config.env, config.env_file, (), environ)
    return {name: value for name, value in plain.items() if name not in config.secret}


def _resources(config: PodConfig) -> PodResources:
    return PodResources(
        gpus=config.gpus or 0,
        gpu_resource=config.gpu_resource,
        cpu=str(config.cpu or ""),
        memory=config.memory or "",
        shared_memory=config.shm_size or "",
        more=_pairs("--resource", config.resource),
    )


def _pairs(flag: str, texts: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return NAME=VALUE texts as a mapping."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise UsageError(f"{flag} {text}: expected NAME=VALUE")
        found[name] = value
    return found
