"""Makes the Workload by which Kueue admits an `ElasticJob` as a whole, and reads its words (pure).

Must never happen: pods of a job run that Kueue has not admitted, or more of them than it has; room
is given back while pods still use it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spotelastic.client.kubernetes.kube_job import KubeJob
from spotelastic.client.operator.resource import JobResource
from spotelastic.client.operator.told import condition
from spotelastic.kubernetes import cluster_manifests
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import CUSTOM
from spotelastic.kubernetes.provider.kube_names import KubeNames

KIND, PRIORITY = "Workload", "WorkloadPriorityClass"
GROUP, VERSION, _ = CUSTOM[KIND]
ASKED = "spotelastic/asked"
"""Annotation of a Workload with what was asked for: a digest of the pods, and how many."""
TOLD = frozenset({"ready", "finish", "release"})
"""Steps of the operator that a Workload's status tells of."""
CONTROL, WORKERS = "control", "workers"
AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Reasons of an eviction after which a job queues again by itself; after others Kueue says when."""
_PLACED = ("nodeSelector", "affinity", "tolerations", "overhead", "runtimeClassName")
"""What counts of a pod, besides the resources of its containers."""


def workload(its: JobResource, job: KubeJob) -> Manifest:
    """Return the Workload of a job, without its priority.

    Of its pods it has what Kueue counts: a change of anything else does not queue the job again.
    """
    names, settings = KubeNames(job.name), job.spec.settings
    made = cluster_manifests.control_plane(names, job.pods, job.control_image, {})
    (control,) = (each["spec"]["template"] for each in made if each["kind"] == "Deployment")
    workers = cluster_manifests.worker_template(names, job.pods, job.spec)
    sets = {CONTROL: _counted(control), WORKERS: _counted(workers)}
    shape = json.dumps((its.queue, sets), sort_keys=True)
    low, high = settings.min_nodes, settings.max_nodes
    word = f"{hashlib.sha256(shape.encode()).hexdigest()[:20]} {low}-{high}"
    sizes: dict[str, Manifest] = {CONTROL: {"count": 1}, WORKERS: {"count": high, "minCount": low}}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": name(its),
            "annotations": {ASKED: word},
            "ownerReferences": [{**its.reference, "controller": True}],
        },
        "spec": {
            "queueName": its.queue,
            "podSets": [{"name": it, "template": sets[it], **sizes[it]} for it in sets],
        },
    }


def name(its: JobResource) -> str:
    """Return the name of a job's Workload; another job of the same name has another one."""
    return f"elasticjob-{its.name}-{hashlib.sha256(its.uid.encode()).hexdigest()[:5]}"


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """What Kueue says of a job that has a queue."""

    found: Manifest | None = None
    """Its Workload; None: there is none that stays."""
    wanted: Manifest | None = None
    """The Workload that it asks for now; None: what it asks for cannot be."""

    @property
    def is_admitted(self) -> bool:
        """Whether the job may have pods: those that its Workload was admitted with."""
        ends = self.holds("Evicted") or self.holds("Finished")
        return self.holds("Admitted") and not ends and self.is_asked

    @property
    def is_asked(self) -> bool:
        """Whether the Workload asks for what the job asks for, or has enough for it."""
        if self.found is None or self.wanted is None or self.holds("Finished"):
            return self.found is not None and not self.holds("Finished")
        was, now = (
            (each["metadata"].get("annotations") or {}).get(ASKED, "").split(" ")
            for each in (self.found, self.wanted)
        )
        if not self.holds("QuotaReserved"):
            return bool(was == now)
        return bool(was[0] == now[0]) and self.most >= int(now[1].partition("-")[0])

    @property
    def most(self) -> int:
        """How many workers were admitted."""
        sets = (self._status.get("admission") or {}).get("podSetAssignments") or ()
        return next((int(each["count"]) for each in sets if each["name"] == WORKERS), 0)

    @property
    def message(self) -> str:
        """Kueue's words on why the job has no pods, or ours."""
        if self.holds("Admitted") and not self.holds("Evicted"):
            return "it asks for other pods than it was admitted with"
        its = self.condition("Evicted" if self.holds("Evicted") else "QuotaReserved")
        return str(its.get("message") or "waits for its queue")

    def condition(self, type_: str) -> Mapping[str, Any]:
        """Return a condition of the Workload; empty: it has none of that type."""
        known = self._status.get("conditions") or ()
        return next((each for each in known if each["type"] == type_), {})

    def holds(self, type_: str) -> bool:
        """Whether a condition of the Workload holds."""
        return self.condition(type_).get("status") == "True"

    def fitted(self, job: KubeJob) -> KubeJob:
        """Return the job with as many nodes as were admitted, where Kueue's checks place them."""
        if not self.is_admitted:
            return job
        settings, pods = job.spec.settings, job.pods
        settings = replace(settings, max_nodes=min(settings.max_nodes, self.most))
        place, metadata = pods.placement, dict(pods.template.get("metadata") or {})
        checks = self._status.get("admissionChecks") or ()
        for each in (each for it in checks for each in it.get("podSetUpdates") or ()):
            if each["name"] == WORKERS:
                selector = {**place.node_selector, **each.get("nodeSelector", {})}
                tolerations = (*place.tolerations, *each.get("tolerations", ()))
                place = replace(place, node_selector=selector, tolerations=tolerations)
                for part in each.keys() & {"labels", "annotations"}:
                    metadata[part] = {**metadata.get(part, {}), **each[part]}
        template = {**pods.template, "metadata": metadata} if metadata else pods.template
        pods = replace(pods, placement=place, template=template)
        return replace(job, spec=replace(job.spec, settings=settings), pods=pods)

    def told(self, step: str, state: str, message: str, now: float) -> Manifest:
        """Return the patch of the Workload's status for a step of a job in this state.

        "release" gives the room back; the pods are gone then.
        """
        word = "Succeeded" if state == "succeeded" else "Failed"
        reason, why = self.condition("Evicted").get("reason", ""), self.message
        said: dict[str, tuple[tuple[str, bool, str, str], ...]] = {
            "ready": (("PodsReady", True, "Started", message),),
            "finish": (("Finished", True, word, message),),
            "release": (
                ("QuotaReserved", False, "Pending", why),
                ("Admitted", False, "NoReservation", why),
                ("PodsReady", False, "WaitForStart", why),
                ("Requeued", reason in AT_ONCE, reason, why),
            ),
        }
        metadata = self.found["metadata"] if self.found else {}
        known = {each["type"]: each for each in self._status.get("conditions") or ()}
        generation = int(metadata.get("generation", 1))
        for each in said[step]:
            known[each[0]] = condition(self._status, generation, each, now)
        status: Manifest = {"conditions": list(known.values())}
        if step == "release":
            status["admission"] = None
        # With the version: Kueue may write at the same time.
        return {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}

    @property
    def _status(self) -> Mapping[str, Any]:
        return (self.found or {}).get("status") or {}


def _counted(template: Manifest) -> Manifest:
    """Return what Kueue counts of a pod template."""
    spec = template["spec"]
    kept = {each: spec[each] for each in _PLACED if each in spec}
    for part in ("initContainers", "containers"):
        if part in spec:
            kept[part] = [
                {key: each[key] for key in ("name", "resources", "restartPolicy") if key in each}
                for each in spec[part]
            ]
    return {"spec": kept}
