"""Merges a pod template of the user's over the one that is made of a job (pure).

It is merged as `kubectl patch` merges: mappings key by key, lists whose elements have names by
those, other lists as a whole; null removes a value, and `$patch: delete` an element.

Must never happen: the template takes away what a cluster relies on. So what is not the user's to
change is compared afterwards (`_own`).
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from spotelastic.errors import UsageError
from spotelastic.kubernetes.pods import CONTAINER, WRITABLE, Manifest

PARTS = {"metadata": ("labels", "annotations"), "spec": None}
"""What a template has; None: whatever Kubernetes takes."""
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists whose elements have a key, by which they are merged."""
_FIXED = ("restartPolicy", "terminationGracePeriodSeconds", "subdomain", "hostname")
"""Fields of a pod that follow from the job."""


def merged(made: Manifest, template: Mapping[str, Any]) -> Manifest:
    """Return the made template with the user's over it.

    Raises `UsageError` for one that is no template, or changes what a cluster relies on.
    """
    _check(template)
    after: Manifest = _merged(made, template)
    before, now = dict(_own(made)), dict(_own(after))
    for path, value in before.items():
        if now.get(path) != value:
            raise UsageError(f"--pod-template: {path} is spotelastic's own: leave it out")
    given = after["spec"].get("containers")
    if len(_named(given)) != len(given):
        raise UsageError("--pod-template: spec.containers: each one needs a name")
    return after


def _check(template: Mapping[str, Any]) -> None:
    """Raise `UsageError` for what no template has."""
    for part, value in template.items():
        if part not in PARTS or not isinstance(value, Mapping):
            raise UsageError(f"--pod-template: {part}: expected the mappings metadata and spec")
    for name in template.get("metadata", {}):
        if name not in (PARTS["metadata"] or ()):
            raise UsageError(f"--pod-template: metadata.{name}: give labels and annotations alone")


def _merged(before: Any, patch: Any, name: str = "") -> Any:
    if isinstance(patch, Mapping):
        after = dict(before) if isinstance(before, Mapping) else {}
        for each, value in patch.items():
            if value is None:
                after.pop(each, None)
            else:
                after[each] = _merged(after.get(each), value, each)
        return after
    key = _KEYS.get(name, "")
    if not key or not isinstance(patch, list) or len(_named(patch, key)) != len(patch):
        return copy.deepcopy(patch)
    found = {each[key]: each for each in _named(before, key)}
    for each in patch:
        if each.get("$patch") == "delete":
            found.pop(each[key], None)
        else:
            found[each[key]] = _merged(found.get(each[key]), each)
    return list(found.values())


def _named(value: Any, key: str = "name") -> list[Mapping[str, Any]]:
    """Return the elements of a list that have a key, which is a text or a number."""
    given = value if isinstance(value, list) else ()
    return [
        each for each in given if isinstance(each, Mapping) and isinstance(each.get(key), str | int)
    ]


def _own(template: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield what is not the user's to change: paths, and values."""
    for name, value in (template.get("metadata", {}).get("labels") or {}).items():
        yield f"metadata.labels.{name}", value
    spec = template["spec"]
    for name in _FIXED:
        yield f"spec.{name}", spec.get(name)
    volumes = {each["name"]: each.keys() for each in _named(spec.get("volumes"))}
    for its in _named(spec.get("containers")):
        if its["name"] != CONTAINER:
            continue
        for name in ("command", "args", "image"):
            yield f"spec.containers.{CONTAINER}.{name}", its.get(name)
        for each in _named(its.get("env")):
            if str(each["name"]).startswith("SPOTELASTIC_"):
                yield f"spec.containers.{CONTAINER}.env.{each['name']}", each
        for each in _named(its.get("volumeMounts"), "mountPath"):
            path = f"spec.containers.{CONTAINER}.volumeMounts.{each['mountPath']}"
            name = each.get("name")
            yield path, (each, None if name in WRITABLE else volumes.get(name))
