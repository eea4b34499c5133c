"""What the API server fills in and refuses (pure), as far as the product meets it."""

import copy
from typing import Any

from support.emulated_kubernetes.api.custom import HOLDS_OBJECTS, check_definition
from support.emulated_kubernetes.api.kinds import (
    DEFINITIONS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    ObjectKind,
)
from support.emulated_kubernetes.api.refusals import invalid

Object = dict[str, Any]

HOLDS_NAMESPACE = "kubernetes"
"""The finalizer of a namespace, which goes when nothing is left in it."""
MOST_BYTES = 1_048_576
"""Of the data of a Secret or a ConfigMap."""
_IMMUTABLE_IN_JOBS = ("template", "completionMode", "selector", "podFailurePolicy")


def completed(kind: ObjectKind, given: Object) -> Object:
    """Return a new object with what the server fills in. Raises `ApiError`."""
    made = copy.deepcopy(given)
    metadata, spec = made.setdefault("metadata", {}), made.get("spec") or {}
    if kind is NAMESPACES:
        metadata["finalizers"] = [HOLDS_NAMESPACE]
    if kind is DEFINITIONS:
        check_definition(made)
        metadata["finalizers"] = [HOLDS_OBJECTS]
    if kind is JOBS:
        _complete_job(metadata, spec)
    if kind in (JOBS, DEPLOYMENTS, REPLICA_SETS):
        _check_pod(kind, spec.get("template", {}).get("spec", {}))
    if kind in (DEPLOYMENTS, REPLICA_SETS):
        spec.setdefault("replicas", 1)
    if kind is PODS:
        _check_pod(kind, spec)
        spec.setdefault("restartPolicy", "Always")
    check_size(kind, made)
    return made


def check_change(kind: ObjectKind, before: Object, after: Object) -> None:
    """Raise `ApiError` where a change touches what cannot be changed."""
    check_size(kind, after)
    if kind is DEFINITIONS:
        check_definition(after)
    if kind is PODS and before.get("spec") != after.get("spec"):
        raise invalid(kind.name, "spec: Forbidden: pod updates may not change fields")
    if kind is not JOBS:
        return
    was, is_ = before["spec"], after.get("spec") or {}
    for name in _IMMUTABLE_IN_JOBS:
        if was.get(name) != is_.get(name):
            raise invalid(kind.name, f"spec.{name}: Invalid value: field is immutable")
    sizes = is_.get("completions"), is_.get("parallelism")
    if was["completions"] != sizes[0] and sizes[0] != sizes[1]:
        told = "spec.completions: Invalid value: can only be modified in tandem with parallelism"
        raise invalid(kind.name, told)


def check_size(kind: ObjectKind, given: Object) -> None:
    """Raise `ApiError` for a Secret or ConfigMap that is larger than the API server stores."""
    data = (given.get("data") or {}, given.get("stringData") or {}, given.get("binaryData") or {})
    if kind.name in ("Secret", "ConfigMap"):
        size = sum(len(value) for values in data for value in values.values())
        if size > MOST_BYTES:
            raise invalid(kind.name, f"data: Too long: may not be more than {MOST_BYTES} bytes")


def _complete_job(metadata: Object, spec: Object) -> None:
    if spec.get("completionMode") != "Indexed":
        raise invalid("Job", "spec.completionMode: the emulated cluster runs Indexed Jobs alone")
    if "completions" not in spec:
        raise invalid("Job", "spec.completions: Required value: when completion mode is Indexed")
    spec.setdefault("parallelism", 1)
    labels = spec.setdefault("template", {}).setdefault("metadata", {}).setdefault("labels", {})
    name = metadata.get("name", "")
    labels |= {"job-name": name, "batch.kubernetes.io/job-name": name}
    if spec["template"].get("spec", {}).get("restartPolicy") not in ("Never", "OnFailure"):
        told = 'spec.template.spec.restartPolicy: Required value: "OnFailure", "Never"'
        raise invalid("Job", told)


def _check_pod(kind: ObjectKind, spec: Object) -> None:
    containers = spec.get("containers") or ()
    if len(containers) != 1:
        raise invalid(kind.name, "containers: the emulated cluster runs one container of a pod")
    for each in (*containers, *spec.get("initContainers", ())):
        if not each.get("name") or not each.get("image"):
            raise invalid(kind.name, "containers: Required value: name and image")
        if not each.get("command") and not each.get("args"):
            raise invalid(kind.name, "command: the emulated cluster has no images to take it from")
