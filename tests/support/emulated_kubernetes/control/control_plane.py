"""Brings about what the objects say, once after each change: the cluster's own controllers.

Each pass reads the objects, and carries out what the pure decisions beside this file return: pods
of Jobs and Deployments, a node for each pod, and the end of what has lost its owner.
"""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from support.emulated_kubernetes.api.custom import HOLDS_OBJECTS, kinds_of
from support.emulated_kubernetes.api.kinds import (
    BUDGETS,
    CLAIMS,
    DEFINITIONS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    ObjectKind,
)
from support.emulated_kubernetes.api.objects import Object, ObjectStore, timestamp
from support.emulated_kubernetes.api.refusals import ApiError
from support.emulated_kubernetes.api.selectors import by_selector
from support.emulated_kubernetes.api.validate import HOLDS_NAMESPACE
from support.emulated_kubernetes.control import deployments, jobs, replica_sets, scheduling
from support.emulated_kubernetes.control.conditions import with_condition


class ControlPlane:
    """The controllers of the cluster. `reconcile` runs them once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._retry_at: dict[str, float] = {}
        """When a Job, by its uid, may create pods again after a failure."""
        self._refused: dict[str, str] = {}
        """Why pods of an owner, by its uid, are refused, as it was told."""

    def reconcile(self) -> float:
        """Do what is to be done now. Returns when to do it again at the latest; 0: at a change."""
        for deployment in self._store.items(DEPLOYMENTS):
            self._reconcile_deployment(deployment)
        for group in self._store.items(REPLICA_SETS):
            self._reconcile_replica_set(group)
        looks = [self._reconcile_job(job) for job in self._store.items(JOBS)]
        self._schedule()
        self._collect_orphans()
        self._end_namespaces()
        self._look_after_definitions()
        self._bind_claims()
        for budget in self._store.items(BUDGETS):
            self._reconcile_budget(budget)
        return min((each for each in looks if each), default=0.0)

    def tell(self, kind: ObjectKind, about: Object, reason: str, message: str) -> None:
        """Record an Event about an object."""
        record_event(self._store, kind, about, reason, message)

    # -- jobs and deployments --------------------------------------------------------------------

    def _reconcile_job(self, job: Object) -> float:
        metadata, now = job["metadata"], self._store.clock()
        uid, name, place = metadata["uid"], metadata["name"], metadata["namespace"]
        if "deletionTimestamp" in metadata:
            self._retry_at.pop(uid, None)
            return 0.0
        pods = self._store.owned(PODS, uid)
        text = timestamp(now)
        done = jobs.decide(job, pods, now, text, self._retry_at.get(uid, 0.0))
        self._retry_at[uid] = done.look_again
        for each in done.delete:
            self._store.delete(PODS, place, each)
            self.tell(JOBS, job, "SuccessfulDelete", f"Deleted pod: {each}")
        for index, failures in done.create:
            self._create_pod(JOBS, job, partial(_indexed, name, index, failures))
        # The counts first: a pod that is gone before it is counted would be counted never.
        self._store.update(JOBS, place, name, lambda it: it.update(status=done.status), uid=uid)
        for each in done.release:
            self._store.update(PODS, place, each, _without_finalizer)
        gone_at = jobs.gone_at(job["spec"], done.status)
        if gone_at and now >= gone_at:
            self._store.delete(JOBS, place, name, propagation="Foreground")
            return 0.0
        looks = (done.look_again, done.over_at, gone_at)
        return min((each for each in looks if each), default=0.0)

    def _reconcile_deployment(self, deployment: Object) -> None:
        metadata = deployment["metadata"]
        if "deletionTimestamp" in metadata:
            return
        place, pods = metadata["namespace"], self._store.owned(PODS, metadata["uid"])
        done = deployments.decide(deployment, pods)
        for name in done.delete:
            self._store.delete(PODS, place, name)
        label = deployments.template_hash(deployment)
        for _ in range(done.create):
            self._create_pod(DEPLOYMENTS, deployment, partial(_hashed, metadata["name"], label))
        status = self._with_refusal(deployment, done.status, tries=bool(done.create))
        self._store.update(
            DEPLOYMENTS, place, metadata["name"], lambda it: it.update(status=status)
        )

    def _reconcile_replica_set(self, group: Object) -> None:
        metadata = group["metadata"]
        if "deletionTimestamp" in metadata:
            return
        place, name = metadata["namespace"], metadata["name"]
        done = replica_sets.decide(group, self._store.owned(PODS, metadata["uid"]))
        for each in done.delete:
            self._store.delete(PODS, place, each)
            self.tell(REPLICA_SETS, group, "SuccessfulDelete", f"Deleted pod: {each}")
        for _ in range(done.create):
            self._create_pod(REPLICA_SETS, group, partial(_replica, name))
        status = self._with_refusal(group, done.status, tries=bool(done.create))
        self._store.update(REPLICA_SETS, place, name, lambda it: it.update(status=status))

    def _with_refusal(self, owner: Object, status: Object, *, tries: bool) -> Object:
        """Return a status that says why the namespace has just refused a pod, if it has."""
        metadata, since = owner["metadata"], timestamp(self._store.clock())
        why = self._refused.get(metadata["uid"], "") if tries else ""
        if not why:
            return status
        known = {"conditions": owner.get("status", {}).get("conditions", [])}
        told = f'pods "{metadata["name"]}-" is forbidden: {why}'
        return status | with_condition(known, "ReplicaFailure", True, since, "FailedCreate", told)

    def _create_pod(self, kind: ObjectKind, owner: Object, named: Any) -> None:
        template, metadata = owner["spec"]["template"], owner["metadata"]
        given = template.get("metadata", {})
        reference = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        pod: Object = {
            "metadata": {
                "labels": dict(given.get("labels", {})),
                "annotations": dict(given.get("annotations", {})),
                "ownerReferences": [reference],
            },
            "spec": dict(template["spec"]),
        }
        named(pod)
        try:
            made = self._store.create(PODS, metadata["namespace"], pod)
        except ApiError as error:
            if error.code != 403:
                raise
            self._tell_refused(kind, owner, error.message)
            return
        self._refused.pop(metadata["uid"], None)
        if kind is not DEPLOYMENTS:
            name = made["metadata"]["name"]
            self.tell(kind, owner, "SuccessfulCreate", f"Created pod: {name}")

    def _tell_refused(self, kind: ObjectKind, owner: Object, why: str) -> None:
        """Record that the namespace refuses a pod, once: the next pass tries again."""
        why = why.partition(" is forbidden: ")[2]
        if self._refused.get(owner["metadata"]["uid"]) != why:
            self._refused[owner["metadata"]["uid"]] = why
            self.tell(kind, owner, "FailedCreate", f"Error creating: pods are forbidden: {why}")

    # -- pods ------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        nodes = self._store.items(NODES)
        for pod in self._store.items(PODS):
            metadata = pod["metadata"]
            if pod["spec"].get("nodeName") or "deletionTimestamp" in metadata:
                continue
            node, why = scheduling.place(pod, nodes, self._store.items(PODS))
            place, name = metadata["namespace"], metadata["name"]
            known = [each.get("message") for each in pod["status"].get("conditions", ())]
            if node:
                self._store.update(PODS, place, name, partial(self._bind, node))
            elif why not in known:
                self._store.update(PODS, place, name, partial(self._refuse, why))
                self.tell(PODS, pod, "FailedScheduling", why)

    def _bind(self, node: str, pod: Object) -> None:
        now = timestamp(self._store.clock())
        labels = self._store.get(NODES, "", node)["metadata"].get("labels", {})
        if scheduling.ZONE in labels:  # which pods have since 1.35
            pod["metadata"].setdefault("labels", {})[scheduling.ZONE] = labels[scheduling.ZONE]
        pod["spec"]["nodeName"] = node
        pod["status"] = with_condition(pod["status"], "PodScheduled", True, now)
        pod["status"]["phase"] = "Pending"

    def _refuse(self, why: str, pod: Object) -> None:
        now = timestamp(self._store.clock())
        pod["status"] = with_condition(
            pod["status"], "PodScheduled", False, now, "Unschedulable", why
        )
        pod["status"]["phase"] = "Pending"

    def _reconcile_budget(self, budget: Object) -> None:
        metadata, spec = budget["metadata"], budget["spec"]
        matches = by_selector(spec.get("selector") or {})
        pods = [pod for pod in self._store.items(PODS, metadata["namespace"]) if matches(pod)]
        healthy = sum(_is_healthy(pod) for pod in pods)
        expected = sum(pod["status"].get("phase") not in ("Succeeded", "Failed") for pod in pods)
        if "maxUnavailable" in spec:
            desired = expected - _share(spec["maxUnavailable"], expected)
        else:
            desired = _share(spec.get("minAvailable", 1), expected)
        status = {
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": max(0, healthy - desired),
        }
        place, name = metadata["namespace"], metadata["name"]
        self._store.update(BUDGETS, place, name, lambda it: it.update(status=status))

    # -- what ends -------------------------------------------------------------------------------

    def _collect_orphans(self) -> None:
        """Delete what has lost its owners; let an owner go that waits for what it owns."""
        kinds = self._store.kinds()
        everything = [(kind, each) for kind in kinds for each in self._store.items(kind)]
        alive = {each["metadata"]["uid"] for _, each in everything if not _goes_last(each)}
        waits_for = set[str]()
        for kind, each in everything:
            owners = {one["uid"] for one in each["metadata"].get("ownerReferences", ())}
            waits_for |= owners
            if not owners or owners & alive:
                continue
            if "deletionTimestamp" not in each["metadata"]:
                self._delete(kind, each)
            else:
                self._drop_finalizers(kind, each, (jobs.FINALIZER,))
        for kind, each in everything:
            uid, held = each["metadata"]["uid"], each["metadata"].get("finalizers", ())
            if "orphan" in held:
                self._let_go(uid)
            if "orphan" in held or uid not in waits_for:
                self._drop_finalizers(kind, each, ("orphan", "foregroundDeletion"))

    def _let_go(self, owner: str) -> None:
        for kind in self._store.kinds():
            for each in self._store.owned(kind, owner):
                metadata = each["metadata"]
                self._store.update(
                    kind, metadata.get("namespace", ""), metadata["name"], _without_owners
                )

    def _drop_finalizers(self, kind: ObjectKind, each: Object, names: tuple[str, ...]) -> None:
        metadata = each["metadata"]
        if "deletionTimestamp" in metadata and set(names) & set(metadata.get("finalizers", ())):
            kept = [name for name in metadata["finalizers"] if name not in names]
            self._store.update(
                kind,
                metadata.get("namespace", ""),
                metadata["name"],
                lambda it: it["metadata"].update(finalizers=kept),
            )

    def _end_namespaces(self) -> None:
        for namespace in self._store.items(NAMESPACES):
            if "deletionTimestamp" not in namespace["metadata"]:
                continue
            name = namespace["metadata"]["name"]
            left = [
                (kind, each)
                for kind in self._store.kinds()
                if kind.namespaced
                for each in self._store.items(kind, name)
            ]
            for kind, each in left:
                if "deletionTimestamp" not in each["metadata"]:
                    self._delete(kind, each)
            if not left:
                self._drop_finalizers(NAMESPACES, namespace, (HOLDS_NAMESPACE,))

    def _look_after_definitions(self) -> None:
        """Say that definitions are served; end one that was deleted once its objects are gone."""
        for each in self._store.items(DEFINITIONS):
            name = each["metadata"]["name"]
            if "deletionTimestamp" not in each["metadata"]:
                now = timestamp(self._store.clock())
                self._store.update(DEFINITIONS, "", name, partial(_established, now))
                continue
            left = [(kind, it) for kind in kinds_of(each) for it in self._store.items(kind)]
            for kind, it in left:
                if "deletionTimestamp" not in it["metadata"]:
                    self._delete(kind, it)
            if not left:
                self._drop_finalizers(DEFINITIONS, each, (HOLDS_OBJECTS,))

    def _delete(self, kind: ObjectKind, each: Object) -> None:
        metadata = each["metadata"]
        try:
            self._store.delete(kind, metadata.get("namespace", ""), metadata["name"])
        except ApiError as error:
            if error.code != 404:
                raise

    def _bind_claims(self) -> None:
        for claim in self._store.items(CLAIMS):
            metadata = claim["metadata"]
            self._store.update(CLAIMS, metadata["namespace"], metadata["name"], _bound)


def record_event(
    store: ObjectStore, kind: ObjectKind, about: Object, reason: str, message: str
) -> None:
    """Record an Event about an object."""
    metadata, now = about["metadata"], timestamp(store.clock())
    place = metadata.get("namespace") or "default"
    event = {
        "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}"},
        "involvedObject": {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "name": metadata["name"],
            "namespace": place,
            "uid": metadata["uid"],
        },
        "type": "Warning" if reason.startswith(("Fail", "Back", "Evict")) else "Normal",
        "reason": reason,
        "message": message,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    with suppress(ApiError):  # a namespace that ends takes none
        store.create(EVENTS, place, event)


def _indexed(job: str, index: int, failures: int, pod: Object) -> None:
    """Name a pod of a Job after its index."""
    metadata = pod["metadata"]
    metadata["name"] = f"{job}-{index}-{secrets.token_hex(3)[:5]}"
    metadata["labels"][jobs.INDEX] = metadata["annotations"][jobs.INDEX] = str(index)
    metadata["annotations"][jobs.FAILURES] = str(failures)
    metadata["finalizers"] = [jobs.FINALIZER]
    pod["spec"].setdefault("hostname", f"{job}-{index}")
    variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
    for part in ("initContainers", "containers"):
        if part in pod["spec"]:
            pod["spec"][part] = [
                {**each, "env": [*each.get("env", ()), variable]} for each in pod["spec"][part]
            ]


def _hashed(deployment: str, label: str, pod: Object) -> None:
    """Name a pod of a Deployment after its template."""
    pod["metadata"]["generateName"] = f"{deployment}-{label}-"
    pod["metadata"]["labels"][deployments.HASH] = label


def _replica(group: str, pod: Object) -> None:
    """Name a pod of a ReplicaSet after it."""
    pod["metadata"]["generateName"] = f"{group}-"


def _without_finalizer(pod: Object) -> None:
    metadata = pod["metadata"]
    metadata["finalizers"] = [each for each in metadata["finalizers"] if each != jobs.FINALIZER]


def _bound(claim: Object) -> None:
    claim["status"] = {**claim["status"], "phase": "Bound"}


def _established(now: str, definition: Object) -> None:
    for word in ("NamesAccepted", "Established"):
        definition["status"] = with_condition(definition["status"], word, True, now, "InitialNames")


def _without_owners(it: Object) -> None:
    it["metadata"].pop("ownerReferences", None)


def _goes_last(owner: Mapping[str, Any]) -> bool:
    """Whether an object ends, and what it owns before it."""
    metadata = owner["metadata"]
    held = metadata.get("finalizers", ())
    return "deletionTimestamp" in metadata and "foregroundDeletion" in held


def _is_healthy(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _share(given: int | str, total: int) -> int:
    """Return a number of pods that is given as such, or as a percentage (rounded up)."""
    if isinstance(given, str) and given.endswith("%"):
        return -(-int(given[:-1]) * total // 100)
    return int(given)
