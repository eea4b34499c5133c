"""A small Kueue for the emulated cluster: one ClusterQueue whose quota is a number of pods.

It admits Workloads in the order of their priority and their age. One that has `minCount` may be
admitted with less than its `count`. A Workload of a higher priority preempts those of lower ones:
there is room again once the job's own integration has given it back.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spotelastic.client.operator.told import time_text
from spotelastic.clock import wall
from spotelastic.errors import SpotelasticError
from spotelastic.kubernetes.provider.api_client import KubeApi

Object = dict[str, Any]
GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
KIND = "Workload"
LOOK = 0.2
_TEXT, _WHOLE, _TABLE = {"type": "string"}, {"type": "integer"}, {"type": "object"}


def _texts() -> Object:
    return {**_TABLE, "additionalProperties": _TEXT}


def _list(*required: str, **properties: Object) -> Object:
    its = {**_TABLE, "required": list(required), "properties": properties}
    return {"type": "array", "items": its}


_SPEC: Object = {
    **_TABLE,
    "properties": {
        "active": {"type": "boolean"},
        "podSets": _list(
            *("name", "count", "template"),
            name=_TEXT,
            count={**_WHOLE, "minimum": 0},
            minCount={**_WHOLE, "minimum": 1},
            template={**_TABLE, "x-kubernetes-preserve-unknown-fields": True},
        ),
        "priority": _WHOLE,
        "priorityClassRef": {
            **_TABLE,
            "required": ["group", "kind", "name"],
            "properties": {
                "group": {**_TEXT, "enum": [GROUP, "scheduling.k8s.io"]},
                "kind": {**_TEXT, "enum": ["WorkloadPriorityClass", "PriorityClass"]},
                "name": _TEXT,
            },
        },
        "queueName": {**_TEXT, "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
    },
    "x-kubernetes-validations": [
        {
            "rule": "!has(self.priorityClassRef) || has(self.priority)",
            "message": "priority should not be nil when priorityClassRef is set",
        }
    ],
}
_STATUS: Object = {
    **_TABLE,
    "properties": {
        "admission": {
            **_TABLE,
            "properties": {
                "clusterQueue": _TEXT,
                "podSetAssignments": _list("name", name=_TEXT, count=_WHOLE, flavors=_texts()),
            },
        },
        "admissionChecks": _list(
            *("name", "state"),
            name=_TEXT,
            state={**_TEXT, "enum": ["Pending", "Ready", "Retry", "Rejected"]},
            message=_TEXT,
            podSetUpdates=_list(
                "name",
                name=_TEXT,
                labels=_texts(),
                annotations=_texts(),
                nodeSelector=_texts(),
                tolerations=_list(key=_TEXT, operator=_TEXT, value=_TEXT, effect=_TEXT),
            ),
        ),
        "conditions": _list(
            *("type", "status", "reason", "message", "lastTransitionTime"),
            type=_TEXT,
            status={**_TEXT, "enum": ["True", "False", "Unknown"]},
            reason={**_TEXT, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
            message=_TEXT,
            lastTransitionTime=_TEXT,
            observedGeneration=_WHOLE,
        ),
    },
}


def definitions() -> list[Object]:
    """What Kueue adds to a cluster, as far as it matters here."""
    workload = {"spec": _SPEC, "status": _STATUS}
    return [
        _definition(KIND, "workloads", "Namespaced", workload),
        _definition(
            "WorkloadPriorityClass", "workloadpriorityclasses", "Cluster", {"value": _WHOLE}
        ),
    ]


def _definition(kind: str, plural: str, scope: str, properties: Object) -> Object:
    schema = {**_TABLE, "properties": properties}
    version: Object = {"name": VERSION, "served": True, "storage": True}
    version |= {"schema": {"openAPIV3Schema": schema}}
    version |= {"subresources": {"status": {}}} if "status" in properties else {}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": scope, "names": names, "versions": [version]},
    }


@dataclass
class EmulatedKueue:
    """Looks after the Workloads of one namespace."""

    api: KubeApi
    room: int
    """The quota, in pods."""

    def workload(self, job: str) -> Object:
        """The Workload of an ElasticJob."""
        (found,) = (each for each in self.api.found(KIND, {}) if _owner(each) == job)
        return found

    def conditions(self, job: str) -> dict[str, tuple[bool, str]]:
        """Whether each condition of a job's Workload holds, and its reason."""
        found = _conditions(self.workload(job))
        return {name: (each["status"] == "True", each["reason"]) for name, each in found.items()}

    def used(self) -> int:
        """How many pods of the quota are taken."""
        return sum(_admitted(each) for each in self.api.found(KIND, {}))

    def prefer(self, job: str, priority: int) -> None:
        """Give a job's Workload a priority."""
        name = self.workload(job)["metadata"]["name"]
        self.api.patch(KIND, name, {"spec": {"priority": priority}})

    def evict(self, job: str, reason: str = "Preempted", message: str = "preempted") -> None:
        """Announce to a job that its pods have to go."""
        self._write(self.workload(job), {"Evicted": (True, reason, message)})

    def look(self) -> None:
        """Look once at all Workloads."""
        found = self.api.found(KIND, {})
        waiting = [each for each in found if not _holds(each, "QuotaReserved") and _may(each)]
        for each in sorted(waiting, key=_place):
            if not self._admit(each):
                break  # those behind it wait for it

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again during the block."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(LOOK):
                try:
                    self.look()
                except SpotelasticError:  # somebody has written at the same time
                    continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _admit(self, it: Object) -> bool:
        sets = it["spec"]["podSets"]
        assert all(each.get("minCount", 0) <= each["count"] for each in sets)
        room = self.room - self.used()
        needed = sum(each.get("minCount", each["count"]) for each in sets)
        if needed > room:
            told = f"couldn't assign flavors to pod set workers: {needed - room} more needed"
            if _conditions(it).get("QuotaReserved", {}).get("message") != told:
                self._write(it, {"QuotaReserved": (False, "Pending", told)})
            self._preempt(it)
            return False
        free, counts = room - needed, []
        for each in sets:
            least = each.get("minCount", each["count"])
            more = min(free, each["count"] - least)
            free -= more
            counts.append({"name": each["name"], "count": least + more})
        conditions = {
            "QuotaReserved": (True, "QuotaReserved", "Quota reserved in ClusterQueue team"),
            "Admitted": (True, "Admitted", "The workload is admitted"),
        }
        if _holds(it, "Evicted"):
            conditions["Evicted"] = (False, "QuotaReserved", "Previously: preempted")
        admission = {"clusterQueue": "team", "podSetAssignments": counts}
        self._write(it, conditions, admission=admission)
        return True

    def _preempt(self, by: Object) -> None:
        """Evict the Workloads that take the place of one with a higher priority."""
        priority = by["spec"].get("priority", 0)
        for each in self.api.found(KIND, {}):
            is_lower = each["spec"].get("priority", 0) < priority
            if is_lower and _admitted(each) and not _holds(each, "Evicted"):
                told = f"Preempted to accommodate a workload of {_owner(by)}"
                self._write(each, {"Evicted": (True, "Preempted", told)})

    def _write(self, it: Object, new: dict[str, tuple[bool, str, str]], **status: Any) -> None:
        known = _conditions(it)
        for name, (holds, reason, message) in new.items():
            known[name] = {"type": name, "status": str(holds), "reason": reason}
            known[name] |= {"message": message, "lastTransitionTime": time_text(wall())}
        patch = {"metadata": {"resourceVersion": it["metadata"]["resourceVersion"]}}
        patch["status"] = {**status, "conditions": list(known.values())}
        self.api.patch(KIND, it["metadata"]["name"], patch, "Status")


def _conditions(it: Object) -> dict[str, Object]:
    known = (it.get("status") or {}).get("conditions") or ()
    return {each["type"]: each for each in known}


def _holds(it: Object, name: str) -> bool:
    found: Object = _conditions(it).get(name, {})
    return found.get("status") == "True"


def _owner(it: Object) -> str:
    (owner,) = it["metadata"]["ownerReferences"]
    assert owner["controller"] and owner["kind"] == "ElasticJob"
    return str(owner["name"])


def _may(it: Object) -> bool:
    """Whether a Workload queues: one that was evicted does so only when that is announced."""
    requeued = _conditions(it).get("Requeued", {}).get("status", "True")
    is_over = _holds(it, "Finished") or it["spec"].get("active") is False
    return requeued == "True" and not is_over


def _admitted(it: Object) -> int:
    """How many pods a Workload was admitted with."""
    if not _holds(it, "QuotaReserved") or _holds(it, "Finished"):
        return 0
    return sum(each["count"] for each in it["status"]["admission"]["podSetAssignments"])


def _place(it: Object) -> tuple[int, str, str]:
    metadata = it["metadata"]
    return -it["spec"].get("priority", 0), metadata["creationTimestamp"], metadata["name"]
