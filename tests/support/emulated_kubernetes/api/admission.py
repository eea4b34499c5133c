"""What a namespace admits of pods (pure): Pod Security's levels, LimitRanges and ResourceQuotas.

As Kubernetes 1.35, of what pods of this project may have. A pod is given a LimitRange's defaults
first, is held to its limits then, and to the level and the quotas at last.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.emulated_kubernetes.api.refusals import ApiError

Object = dict[str, Any]

LEVEL = "pod-security.kubernetes.io/enforce"
"""Label of a namespace with the level that its pods have to keep."""
_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"}
    | {"persistentVolumeClaim", "projected", "secret"}
)
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def admitted(
    pod: Object,
    namespace: Mapping[str, Any],
    limits: Sequence[Mapping[str, Any]],
    quotas: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
) -> Object:
    """Return a new pod as it is stored. `pods` are those that are there. Raises `ApiError`."""
    made = copy.deepcopy(pod)
    for each in limits:
        for limit in each["spec"]["limits"]:
            if limit["type"] == "Container":
                _limit(made, limit)
    level = (namespace["metadata"].get("labels") or {}).get(LEVEL, "privileged")
    if wrong := list(violations(made["spec"], level)):
        raise _forbidden(made, f'violates PodSecurity "{level}:latest": {", ".join(wrong)}')
    for quota in quotas:
        _check_quota(made, quota, pods)
    return made


def violations(spec: Mapping[str, Any], level: str) -> Iterator[str]:
    """Yield in what a pod's specification does not keep a level of the Pod Security Standards."""
    if level == "privileged":
        return
    pod = spec.get("securityContext") or {}
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes") or ():
        types = volume.keys() - {"name"}
        if "hostPath" in types or (level == "restricted" and not types <= _VOLUMES):
            yield f'restricted volume types (volume "{volume["name"]}")'
    for its in (*(spec.get("initContainers") or ()), *spec["containers"]):
        yield from _violations_of(its, pod, level)


def _violations_of(its: Mapping[str, Any], pod: Mapping[str, Any], level: str) -> Iterator[str]:
    own, name = its.get("securityContext") or {}, its["name"]
    capabilities = own.get("capabilities") or {}
    if own.get("privileged"):
        yield f'privileged (container "{name}")'
    if any(each.get("hostPort") for each in its.get("ports") or ()):
        yield f'hostPort (container "{name}")'
    if level == "baseline":
        return
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f'unrestricted capabilities (container "{name}")'
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f'unrestricted capabilities (container "{name}" must drop ALL)'
    if own.get("allowPrivilegeEscalation") is not False:
        yield f'allowPrivilegeEscalation != false (container "{name}")'
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f'runAsNonRoot != true (container "{name}")'
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield f'runAsUser=0 (container "{name}")'
    profile = own.get("seccompProfile") or pod.get("seccompProfile") or {}
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield f'seccompProfile (container "{name}")'


def _limit(pod: Object, limit: Mapping[str, Any]) -> None:
    """Fill in a LimitRange's defaults, and check its bounds. Raises `ApiError`."""
    for its in pod["spec"]["containers"]:
        resources = its.setdefault("resources", {})
        given = resources.get("limits") or {}
        limits = {**limit.get("default", {}), **given}
        asked = resources.get("requests") or {}
        requests = {**limit.get("defaultRequest", {}), **given, **asked}
        resources |= {"limits": limits, "requests": {**limits, **requests}}
        for name, most in limit.get("max", {}).items():
            has = limits.get(name)
            if has is None or amount(has) > amount(most):
                told = f"but limit is {has}" if has is not None else "but no limit is specified"
                raise _forbidden(pod, f"maximum {name} usage per Container is {most}, {told}")
        for name, least in limit.get("min", {}).items():
            has = resources["requests"].get(name)
            if has is None or amount(has) < amount(least):
                raise _forbidden(pod, f"minimum {name} usage per Container is {least}")


def _check_quota(pod: Object, quota: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> None:
    name = quota["metadata"]["name"]
    for what, most in quota["spec"]["hard"].items():
        if what != "pods" and not what.startswith(("limits.", "requests.")):
            continue
        lacking = [its["name"] for its in pod["spec"]["containers"] if _asks(its, what) is None]
        if lacking and what in ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory"):
            raise _forbidden(pod, f"failed quota: {name}: must specify {what} for: {lacking[0]}")
        used = sum(_usage(each, what) for each in pods if _runs(each))
        if used + _usage(pod, what) > amount(most):
            told = f"exceeded quota: {name}, requested: {what}={_usage(pod, what):g}, used: "
            raise _forbidden(pod, f"{told}{what}={used:g}, limited: {what}={most}")


def _runs(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _usage(pod: Mapping[str, Any], what: str) -> float:
    if what == "pods":
        return 1.0
    return sum(amount(_asks(its, what) or 0) for its in pod["spec"]["containers"])


def _asks(its: Mapping[str, Any], what: str) -> Any:
    """Return what a container asks for, or is limited to; None: nothing is said."""
    if what == "pods":
        return 1
    kind, _, name = what.partition(".")
    resources = its.get("resources") or {}
    found = (resources.get(kind) or {}).get(name)
    # A limit alone is a request, too.
    return (resources.get("limits") or {}).get(name) if found is None else found


def amount(text: Any) -> float:
    """Return the number that a quantity stands for."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert found, text
    return float(found[1]) * _UNITS[found[2]]


def _forbidden(pod: Mapping[str, Any], why: str) -> ApiError:
    return ApiError(403, "Forbidden", f'pods "{pod["metadata"]["name"]}" is forbidden: {why}')
