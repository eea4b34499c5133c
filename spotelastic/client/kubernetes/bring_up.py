"""Carries out an `up --kube`: creates a cluster in a namespace, or changes the one that is there.

Everything is created in an order in which pods find what they need, and belongs to the first
object. What is there already is left, or given the same content, so that an interrupted `up` can be
repeated at any point.
"""

import json
from collections.abc import Collection
from dataclasses import replace

import msgspec

from spotelastic.client import confirmation
from spotelastic.client.config.capacity_policy import keep_deadline
from spotelastic.client.config.differences import differences
from spotelastic.client.confirmation import Confirm
from spotelastic.client.kubernetes import code_shipping, kube_cluster, take_down
from spotelastic.client.kubernetes.kube_cluster import KubeCluster, put, released, ship
from spotelastic.client.kubernetes.kube_job import KubeJob
from spotelastic.client.progress import Say
from spotelastic.client.targets.kube_target import KubeTarget
from spotelastic.cloud.bucket import JOB, STOPPING
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError
from spotelastic.kubernetes import cluster_manifests
from spotelastic.kubernetes.elastic_job import MARK
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.call_errors import Conflicting, NoNamespace
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.kubernetes.provider.pod_groups import WORKERS
from spotelastic.model.job import ENDED, JobSpec


def look(target: KubeTarget, job: KubeJob, confirm: Confirm) -> KubeCluster | None:
    """Return the cluster of the job's name, if it is up already.

    Raises `UsageError` if the job cannot be brought up beside it.
    """
    code_shipping.check(job.archive, job.spec.storage)
    known = target.known(job.name)
    if known is None:
        return None
    status = known.objects.status()
    if status is not None and status.state in ENDED:
        raise UsageError(
            f"the job of {known.name} has {status.state}: continue it with `spotelastic restart "
            f"{target.arguments_of(known.name)}`, or end the cluster with `spotelastic down "
            f"{target.arguments_of(known.name)}` and run this again"
        )
    if known.objects.has(STOPPING):
        raise UsageError(f"the cluster {known.name} is being taken down")
    check_kept(known.spec, job)
    other = confirmation.difference(known.spec, job.spec.script, job.spec.folder)
    if other is not None:
        confirmation.ensure_other(
            "other job",
            f"{known.name} is up already, and trains {other}",
            "Change its job to that?",
            "give this one another --name",
            confirm,
        )
    return known


def carry_out(target: KubeTarget, job: KubeJob, known: KubeCluster | None, say: Say) -> KubeCluster:
    """Create the cluster, or change the known one where its job differs.

    If a new cluster fails, also by `KeyboardInterrupt`, what was created is deleted.
    """
    if known is not None:
        return change(target.api, job, known, say)
    try:
        return create(target.api, job, say)
    except NoNamespace:
        raise  # nothing can be there
    except BaseException:
        _remove(target, job.name, say)
        raise


def _remove(target: KubeTarget, name: str, say: Say) -> None:
    """Delete what was created of a cluster, if anything was."""
    try:
        if not take_down.left(target.api, name):
            return
        say(f"creating {name} failed: deleting what was created")
        target.down(name, say)
    except SpotelasticError as error:
        say(
            f"not all of {name} could be deleted: {error}; run `spotelastic down "
            f"{target.arguments_of(name)}` again"
        )


def objects(job: KubeJob) -> list[Manifest]:
    """Return what would be created, for people; code and secrets are left out."""
    its = KubeNames(job.name)
    root = {**cluster_manifests.root(its)}
    root["metadata"] = {**root["metadata"], "uid": ""}
    return [root, *cluster_manifests.control_plane(its, job.pods, root)]


def create(api: KubeApi, job: KubeJob, say: Say) -> KubeCluster:
    """Create the cluster. It may be interrupted, and repeated at any point."""
    its, stored = KubeNames(job.name), ConfigMapObjects(api, job.name)
    root = api.ensure(cluster_manifests.root(its, job.owner))
    for name in stored.names(""):
        stored.delete(name)  # what an earlier cluster of the name has left
    if job.mark:
        stored.put(MARK, job.mark)
    if job.secrets:
        put(api, cluster_manifests.secret(its, job.secrets, root))
    ship(api, job.spec, job.archive, root, say)
    _store_template(stored, its, job)
    stored.put(JOB, msgspec.json.encode(job.spec))
    for each in cluster_manifests.control_plane(its, job.pods, root):
        put(api, each)
    say(f"{its.control}: etcd and the controller; it makes the ReplicaSet {its.spot}")
    return KubeCluster(api, job.spec)


def change(api: KubeApi, job: KubeJob, known: KubeCluster, say: Say) -> KubeCluster:
    """Give the cluster that is there the job. It may be interrupted, and repeated at any point."""
    its, stored = KubeNames(job.name), ConfigMapObjects(api, job.name)
    root = kube_cluster.root(api, job.name)
    if root is None:
        raise EnvironmentFailure(f"{job.name} is just being taken down")
    if job.secrets:
        put(api, cluster_manifests.secret(its, job.secrets, root))
    changes = "; ".join(differences(known.spec, job.spec, _changed_secrets(known.spec, job)))
    say(f"{job.name} is up already; changes: {changes or 'none'}")
    _store_template(stored, its, job)
    template = cluster_manifests.worker_template(its, job.pods, job.spec)
    for name in (its.spot, its.on_demand):
        found = api.get("ReplicaSet", name)
        if found is not None:
            labels = {**template["metadata"]["labels"], **found["spec"]["selector"]["matchLabels"]}
            found["spec"]["template"] = {**template, "metadata": {"labels": labels}}
            try:
                api.replace(found)
            except Conflicting as error:
                raise EnvironmentFailure(f"{error}: run the same `spotelastic up` again") from error
    for each in cluster_manifests.control_plane(its, job.pods, root):
        put(api, each)
    spec = known.change(lambda before: _beside(before, job.spec), job.archive, say)
    return KubeCluster(api, spec)


def _store_template(stored: ConfigMapObjects, its: KubeNames, job: KubeJob) -> None:
    template = cluster_manifests.worker_template(its, job.pods, job.spec)
    stored.put(WORKERS, json.dumps(template).encode())


def _beside(known: JobSpec, wanted: JobSpec) -> JobSpec:
    """Return the wanted job with what is fixed for a cluster."""
    settings = replace(wanted.settings, lease=known.settings.lease)
    capacity = keep_deadline(wanted.capacity, known.capacity)
    kept = replace(wanted, born_at=known.born_at, run=known.run, capacity=capacity)
    return released(replace(kept, settings=settings))


def check_kept(known: JobSpec, job: KubeJob) -> None:
    """Raise `UsageError` for what cannot be changed while nodes train."""
    wanted, lease = job.spec, known.settings.lease
    fixed: tuple[tuple[str, object, object], ...] = (
        ("--storage", known.storage, wanted.storage),
        ("--resume", known.run, wanted.run),
        ("--lease", lease, lease if job.config.lease is None else job.config.lease),
    )
    for flag, before, now in fixed:
        if before != now:
            raise UsageError(
                f"{flag}: the cluster {known.cluster} has {before}: take it down first, or choose "
                "another name"
            )


def _changed_secrets(known: JobSpec, job: KubeJob) -> Collection[str]:
    return tuple(name for name in job.spec.secrets if name not in known.secrets)
