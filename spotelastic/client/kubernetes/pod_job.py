"""Turns a `PodConfig` into the job that manifests are made of. --pod-template may name a file."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.errors import UsageError
from spotelastic.kubernetes import yaml_text
from spotelastic.kubernetes.job_as_pods import (
    PodJob,
    PodPlacement,
    PodResources,
    SecretKey,
)
from spotelastic.model.in_place import FIRST
from spotelastic.model.job import ALLOW_UNCOMMITTED

_TAINT = re.compile(
    r"(?P<key>[A-Za-z0-9./_-]+)(?:=(?P<value>[A-Za-z0-9._-]*))?"
    r"(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


def pod_job(config: PodConfig, found: ValidatedJob) -> PodJob:
    """Return the job that was found to be valid. Values of --secret are not looked for.

    Raises `UsageError`.
    """
    spec, name = found.spec, found.name
    if spec.settings.rehearse == FIRST:
        raise UsageError(
            "--rehearse first: on Kubernetes all pods are made together: run `spotelastic "
            "rehearse` in one of your image before"
        )
    own = {*config.secret, ALLOW_UNCOMMITTED}
    return PodJob(
        name=name,
        namespace=config.namespace or "",
        image=config.image or "",
        storage=_storage(config, config.resume or name),
        env={variable: value for variable, value in spec.env.items() if variable not in own},
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
        found = json.loads(given) if is_text else yaml_text.read(Path(given).read_text())
        # As JSON has it: a date is a text, as for kubectl, and nothing is within itself.
        found = json.loads(json.dumps(found, default=str, allow_nan=False))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{shown}: cannot be read: {error}") from error
    if not isinstance(found, Mapping):
        raise UsageError(f"{shown}: expected the mappings metadata and spec")
    return found


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


def _storage(config: PodConfig, run: str) -> str:
    if config.storage:
        return config.storage
    if not config.bucket:
        raise UsageError(
            "no storage was given: name one that all pods reach, e.g. --storage s3://BUCKET/RUN"
        )
    return f"s3://{config.bucket}/{run}/checkpoints"


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
