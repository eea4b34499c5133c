"""The status of a pod in each state of its life (pure)."""

from dataclasses import dataclass
from typing import Any

from support.emulated_kubernetes.control.conditions import with_condition

Object = dict[str, Any]

DISRUPTED = "DisruptionTarget"
"""The condition of a pod that ends for reasons that are not its own."""


@dataclass(frozen=True, slots=True)
class ContainerCourse:
    """How a container has fared."""

    name: str
    image: str
    restarts: int = 0
    started_at: str = ""


def addressed(status: Object, address: str, host: str, now: str) -> Object:
    """Return the status of a pod that has got its address."""
    status = with_condition(status, "PodReadyToStartContainers", True, now)
    addresses = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": host}
    return {**status, **addresses, "startTime": status.get("startTime", now), "phase": "Pending"}


def waiting(status: Object, its: ContainerCourse, reason: str, message: str, now: str) -> Object:
    """Return the status of a pod whose container cannot start (yet)."""
    state = {"waiting": {"reason": reason, "message": message}}
    status = _readiness(status, False, now)
    phase = "Running" if its.restarts else "Pending"
    return {**status, "phase": phase, "containerStatuses": [_container(its, state, ready=False)]}


def running(status: Object, its: ContainerCourse, now: str) -> Object:
    """Return the status of a pod whose container runs. Without probes, that is ready."""
    status = with_condition(status, "Initialized", True, now)
    status = _readiness(status, True, now)
    state = {"running": {"startedAt": now}}
    return {**status, "phase": "Running", "containerStatuses": [_container(its, state, ready=True)]}


def ended(status: Object, its: ContainerCourse, code: int | None, now: str) -> Object:
    """Return the status of a pod that has ended. `code` is None if no container ever ran."""
    status = _readiness(status, False, now)
    status = {**status, "phase": "Succeeded" if code == 0 else "Failed"}
    if code is None:
        return status
    reason = "Completed" if code == 0 else "Error"
    term: Object = {"exitCode": code, "reason": reason, "finishedAt": now}
    term |= {"startedAt": its.started_at} if its.started_at else {}
    container = _container(its, {"terminated": term}, ready=False)
    return {**status, "containerStatuses": [container]}


def disrupted(status: Object, reason: str, message: str, now: str) -> Object:
    """Return the status of a pod that is about to be ended from outside."""
    return with_condition(status, DISRUPTED, True, now, reason, message)


def exit_code(code: int) -> int:
    """Return a process's end as a container's exit code: 128 plus the signal that killed it."""
    return 128 - code if code < 0 else code


def _readiness(status: Object, ready: bool, now: str) -> Object:
    status = with_condition(status, "ContainersReady", ready, now)
    return with_condition(status, "Ready", ready, now)


def _container(its: ContainerCourse, state: Object, *, ready: bool) -> Object:
    return {
        "name": its.name,
        "image": its.image,
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": its.restarts,
        "state": state,
    }
