"""Lists as tables (pure), which `kubectl get` asks for: the columns that people know."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from support.emulated_kubernetes.api import custom
from support.emulated_kubernetes.api.kinds import (
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    ObjectKind,
)

Object = dict[str, Any]
Cell = Callable[[Mapping[str, Any]], object]

ASKED = "as=Table"
"""What an Accept header has that asks for a table."""


def is_asked(accept: str) -> bool:
    """Whether a request wants a table."""
    return ASKED in accept


def table(
    kind: ObjectKind,
    found: Sequence[Object],
    version: str,
    now: float,
    definition: Mapping[str, Any] | None = None,
) -> Object:
    """Return objects of one kind as a table; `now` is what their ages are counted to.

    Those of a custom kind have the columns that its `definition` prints.
    """
    columns = {"Name": lambda it: it["metadata"]["name"], **_COLUMNS.get(kind, {})}
    if definition is not None:
        columns |= _printed(kind, definition, now)
    elif kind is not EVENTS:
        columns["Age"] = lambda it: age(it, now)
    definitions = [
        {"name": name, "type": "string", "format": "name" if name == "Name" else ""}
        | {"description": "", "priority": 0}
        for name in columns
    ]
    rows = [
        {
            "cells": [str(cell(each)) for cell in columns.values()],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": each["metadata"],
            },
        }
        for each in found
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions,
        "rows": rows,
    }


def age(it: Mapping[str, Any], now: float) -> str:
    """Return how long an object has been there, as kubectl writes it."""
    made = datetime.fromisoformat(it["metadata"]["creationTimestamp"]).timestamp()
    seconds = max(0, int(now - made))
    if seconds < 120:
        return f"{seconds}s"
    return f"{seconds // 60}m" if seconds < 7200 else f"{seconds // 3600}h"


def _printed(kind: ObjectKind, definition: Mapping[str, Any], now: float) -> dict[str, Cell]:
    """Return the columns of a custom kind."""

    def shown(type_: str, path: str) -> Cell:
        return lambda it: age(it, now) if type_ == "date" else custom.cell(it, path)

    return {name: shown(*each) for name, each in custom.cells(kind, definition).items()}


def _pod_status(pod: Mapping[str, Any]) -> str:
    """Return a pod's phase, or what tells more: why it waits, how it ended, that it ends."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    for each in pod["status"].get("containerStatuses", ()):
        for state in each["state"].values():
            if reason := state.get("reason"):
                return str(reason)
    return str(pod["status"].get("phase", "Pending"))


def _ready(pod: Mapping[str, Any]) -> str:
    statuses = pod["status"].get("containerStatuses", ())
    return f"{sum(each['ready'] for each in statuses)}/{len(pod['spec']['containers'])}"


def _restarts(pod: Mapping[str, Any]) -> int:
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


def _job_status(job: Mapping[str, Any]) -> str:
    ended = [each["type"] for each in job["status"].get("conditions", ())]
    return next((each for each in ended if each in ("Complete", "Failed")), "Running")


_COLUMNS: Mapping[ObjectKind, Mapping[str, Cell]] = {
    PODS: {
        "Ready": _ready,
        "Status": _pod_status,
        "Restarts": _restarts,
        "IP": lambda pod: pod["status"].get("podIP", "<none>"),
        "Node": lambda pod: pod["spec"].get("nodeName", "<none>"),
    },
    JOBS: {
        "Status": _job_status,
        "Completions": lambda job: (
            f"{job['status'].get('succeeded', 0)}/{job['spec']['completions']}"
        ),
        "Active": lambda job: job["status"].get("active", 0),
    },
    DEPLOYMENTS: {
        "Ready": lambda it: f"{it['status'].get('readyReplicas', 0)}/{it['spec']['replicas']}"
    },
    NODES: {
        "Status": lambda node: "Tainted" if node["spec"].get("taints") else "Ready",
        "Zone": lambda node: node["metadata"]["labels"].get("topology.kubernetes.io/zone", ""),
    },
    EVENTS: {
        "Last Seen": lambda event: event.get("lastTimestamp", ""),
        "Type": lambda event: event.get("type", ""),
        "Reason": lambda event: event.get("reason", ""),
        "Object": lambda event: (
            f"{event['involvedObject']['kind'].lower()}/{event['involvedObject']['name']}"
        ),
        "Message": lambda event: event.get("message", ""),
    },
}
