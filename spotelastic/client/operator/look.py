"""Looks at an `ElasticJob` and its cluster, and carries out what was decided."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spotelastic.client.config.differences import differences
from spotelastic.client.kubernetes import bring_up, take_down
from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.kubernetes.kube_job import KubeJob
from spotelastic.client.operator import kueue
from spotelastic.client.operator.fields import in_resource_terms
from spotelastic.client.operator.kueue import QueuedJob
from spotelastic.client.operator.operator_decision import (
    OperatorDecision,
    ResourceSeen,
    RootState,
)
from spotelastic.client.operator.resource import JobResource, digest, wanted
from spotelastic.client.operator.told import SpecRefusal
from spotelastic.client.progress import Say
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.kubernetes.elastic_job import KIND, MARK
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.kubernetes.provider.api_client import KINDS, KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting, Missing, Undefined
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kube_names import KubeNames

MADE = tuple(kind for kind in KINDS if kind != "Secret")
"""Kinds of which a cluster has objects that an ElasticJob makes: its secrets are the user's own."""


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What was found, with what is needed to carry a decision out."""

    seen: ResourceSeen
    job: KubeJob | None = None


def look(api: KubeApi, found: Manifest, image: str) -> LookedAt:
    """Look at a resource and its cluster, whose control pod runs `image`."""
    its = JobResource.read(found)
    stored = ConfigMapObjects(api, its.name)
    root, mark = _root(api, its), ClusterMark.of(stored)
    if its.is_deleted:
        left = take_down.left(api, its.name, MADE)
        return LookedAt(ResourceSeen(its, root=root, mark=mark, anything_left=left))
    spec = stored.job()
    # Before the status is read, which is final once there is no pod.
    has_pods = root == "none" and bool(api.found("Pod", KubeNames(its.name).labels()))
    parts = _parts(api, KubeNames(its.name))
    seen = ResourceSeen(
        its,
        root=root,
        mark=mark,
        has_job=spec is not None,
        has_pods=has_pods,
        is_whole=all(each is not None and not pod_reading.is_ending(each) for each in parts),
        hindrance=pod_reading.hindrance(parts),
        published=stored.status(),
        events=stored.events(),
        queue=QueuedJob(_workload(api, its)) if its.queue else None,
    )
    try:
        job = wanted(its, _files(api, its.code_map), image)
    except Missing as error:
        return LookedAt(_refused(seen, "CodeMissing", error))
    except UsageError as error:
        return LookedAt(_refused(seen, "Invalid", error))
    if seen.queue is not None:
        queue = replace(seen.queue, wanted=kueue.workload(its, job))
        seen, job = replace(seen, queue=queue), queue.fitted(job)
    drift = () if spec is None or not seen.is_ours else tuple(differences(spec, job.spec))
    linger = job.validated.spec.linger
    asked = replace(seen, digest=digest(job), drift=drift, linger=linger)
    return LookedAt(asked, job)


def carry_out(api: KubeApi, at: LookedAt, decision: OperatorDecision, now: float, say: Say) -> None:
    """Tell the events, write the status, and take the step."""
    its = at.seen.resource
    for event in decision.events:
        try:
            api.create(event.manifest(its, api.namespace, now))
        except Conflicting:
            continue  # it was told before
        except EnvironmentFailure as error:  # as in a namespace that ends, which takes none
            say(f"{its.name}: {error}")
        say(f"{its.name}: {event.reason}: {event.message}")
    if decision.status != its.status:
        api.patch(KIND, its.name, {"status": dict(decision.status)}, "Status")
    _take(api, at, decision)
    queue, after = at.seen.queue, decision.status
    if queue is not None and decision.step == "ask":
        _ask(api, its, queue)
    elif queue is not None and decision.step in kueue.TOLD:
        patch = queue.told(decision.step, after["state"], after["message"], now)
        api.patch(kueue.KIND, kueue.name(its), patch, "Status")


def _ask(api: KubeApi, its: JobResource, queue: QueuedJob) -> None:
    """Make the Workload, or give the one that waits what is wanted now.

    One that has ended, or was admitted with something else, goes before.
    """
    assert queue.wanted is not None
    if queue.holds("Finished") or queue.holds("QuotaReserved"):
        api.delete(kueue.KIND, kueue.name(its))
        return
    spec = dict(queue.wanted["spec"])
    if its.priority_class:
        found = api.get(kueue.PRIORITY, its.priority_class)
        if found is None:
            raise Missing(f"there is no {kueue.PRIORITY} {its.priority_class}")
        ref = {"group": kueue.GROUP, "kind": kueue.PRIORITY, "name": its.priority_class}
        spec |= {"priorityClassRef": ref, "priority": found["value"]}
    wanted = {**queue.wanted, "spec": spec}
    try:
        if queue.found is None:
            api.ensure(wanted)
        else:
            api.patch(kueue.KIND, kueue.name(its), wanted)
    except Missing as error:
        raise Undefined(kueue.KIND) from error


def _take(api: KubeApi, at: LookedAt, decision: OperatorDecision) -> None:
    its, job = at.seen.resource, at.job
    match decision.step:
        case "hold":
            take_down.hold(api, its.name, held=True)
        case "let go":
            take_down.hold(api, its.name, held=False)
        case "end":
            api.delete("ConfigMap", KubeNames(its.name).root)
        case "take down":
            take_down.step(api, its.name, MADE)
        case "suspend":
            take_down.suspend(api, its.name)
        case "create" if job is not None:
            bring_up.create(api, job)
        case "change" if job is not None:
            bring_up.change(api, job)
    if job is not None and decision.step in ("create", "change"):
        # The cluster has the job.
        ConfigMapObjects(api, its.name).put(MARK, its.mark(digest(job)))


def _parts(api: KubeApi, its: KubeNames) -> list[Manifest | None]:
    """Return the control pod's Deployment and the groups, as far as they are there."""
    parts = ("Deployment", its.control), ("ReplicaSet", its.spot), ("ReplicaSet", its.on_demand)
    return [api.get(kind, name) for kind, name in parts]


def _workload(api: KubeApi, its: JobResource) -> Manifest | None:
    found = api.get(kueue.KIND, kueue.name(its))
    return None if found is None or pod_reading.is_ending(found) else found


def _root(api: KubeApi, its: JobResource) -> RootState:
    found = api.get("ConfigMap", KubeNames(its.name).root)
    if found is None:
        return "none"
    owners = {each["uid"] for each in found["metadata"].get("ownerReferences", ())}
    if its.uid not in owners:
        return "other"
    return "ending" if pod_reading.is_ending(found) else "ours"


def _files(api: KubeApi, name: str) -> Mapping[str, bytes]:
    """Return the files that a ConfigMap has. Raises `Missing`."""
    if not name:
        return {}
    found = api.get("ConfigMap", name)
    if found is None:
        raise Missing(f"spec.codeFrom.configMap: there is no ConfigMap {name} in {api.namespace}")
    binary = {key: base64.b64decode(text) for key, text in found.get("binaryData", {}).items()}
    return {**binary, **{key: text.encode() for key, text in found.get("data", {}).items()}}


def _refused(seen: ResourceSeen, reason: str, error: Exception) -> ResourceSeen:
    return replace(seen, refusal=SpecRefusal(reason, in_resource_terms(str(error))))
