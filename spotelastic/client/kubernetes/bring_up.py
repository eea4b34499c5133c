"""Creates the cluster of an ElasticJob in its namespace, or changes the one that is there.

Everything is created in an order in which pods find what they need, and belongs to the first
object. What is there already is left, or given the same content, so that each step can be repeated
at any point.
"""

from dataclasses import replace

import msgspec

from spotelastic.client.config.capacity_policy import keep_deadline
from spotelastic.client.kubernetes import kube_cluster
from spotelastic.client.kubernetes.kube_cluster import put, released, ship
from spotelastic.client.kubernetes.kube_job import KubeJob
from spotelastic.cloud.bucket import JOB
from spotelastic.cloud.model import UNATTENDED
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.kubernetes import cluster_manifests
from spotelastic.kubernetes.elastic_job import MARK
from spotelastic.kubernetes.pods import Manifest
from spotelastic.kubernetes.provider import pod_groups, pod_reading
from spotelastic.kubernetes.provider.api_client import KubeApi
from spotelastic.kubernetes.provider.config_map_objects import ConfigMapObjects
from spotelastic.kubernetes.provider.kube_names import KubeNames
from spotelastic.model.job import JobSpec


def create(api: KubeApi, job: KubeJob) -> None:
    """Create the cluster. It may be interrupted, and repeated at any point."""
    its, stored = KubeNames(job.name), ConfigMapObjects(api, job.name)
    root = api.ensure(cluster_manifests.root(its, job.owner))
    for name in stored.names(""):
        stored.delete(name)  # what an earlier cluster of the name has left
    if job.mark:
        stored.put(MARK, job.mark)
    _ship(api, its, job, root)
    stored.put(JOB, msgspec.json.encode(job.spec))
    _put_running(api, its, job, root)


def change(api: KubeApi, job: KubeJob) -> None:
    """Give the cluster that is there the job. It may be interrupted, and repeated at any point."""
    its, stored = KubeNames(job.name), ConfigMapObjects(api, job.name)
    root = kube_cluster.root(api, job.name)
    if root is None:
        raise EnvironmentFailure(f"{job.name} is just being taken down")
    _put_running(api, its, job, root)
    _ship(api, its, job, root)
    stored.change_job(lambda before: _beside(before, job.spec))


def _ship(api: KubeApi, its: KubeNames, job: KubeJob, root: Manifest) -> None:
    """Give pods the code. That which `up` has shipped is there already."""
    if job.archive or not job.spec.code:
        ship(api, its, job.archive, root)


def _put_running(api: KubeApi, its: KubeNames, job: KubeJob, root: Manifest) -> None:
    """Make the groups of workers, without pods, or give those that are there the template.

    Then make the control pod, or change it.
    """
    template = cluster_manifests.worker_template(its, job.pods, job.spec)
    switch = api.ensure(pod_groups.switch(its, job.control_image, root, UNATTENDED))
    if pod_groups.is_over(switch):
        raise Unavailable(f"{its.switch} is just ending: its groups are made again then")
    for name in (its.spot, its.on_demand):
        found = api.ensure(pod_groups.group(its, name, template, switch))
        if pod_reading.is_ending(found):
            raise Unavailable(f"{name} is just being deleted: it is made again then")
        labels = {**template["metadata"]["labels"], **found["spec"]["selector"]["matchLabels"]}
        wanted = {**template, "metadata": {**template["metadata"], "labels": labels}}
        if found["spec"]["template"] != wanted:
            api.replace({**found, "spec": {**found["spec"], "template": wanted}})
    for each in cluster_manifests.control_plane(its, job.pods, job.control_image, root):
        put(api, each)


def _beside(known: JobSpec, wanted: JobSpec) -> JobSpec:
    """Return the wanted job with what is fixed for a cluster."""
    settings = replace(wanted.settings, lease=known.settings.lease)
    capacity = keep_deadline(wanted.capacity, known.capacity)
    kept = replace(wanted, born_at=known.born_at, run=known.run, capacity=capacity)
    return released(replace(kept, settings=settings))
