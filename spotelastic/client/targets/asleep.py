"""Finds the region in which a job that moves by itself is: in the others its cluster is asleep."""

from spotelastic.aws.clusters import asleep
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.model.job import JobSpec


def sleeps(cluster: ClusterRecord) -> bool:
    """Whether the cluster is asleep: its job moves by itself, and is in another region."""
    return cluster.spec.regions is not None and not asleep.is_awake(cluster.aws, cluster.name)


def other_regions(job: JobSpec, here: str) -> tuple[str, ...]:
    """Return the other regions in which the job has a cluster, one way or the other."""
    names = () if job.regions is None else job.regions.names
    return tuple(region for region in names if region != here)


def awake(home: CloudTarget, cluster: ClusterRecord) -> CloudTarget | None:
    """Return the region in which the job of a cluster that is asleep is.

    None while it is moved, when it may be in no region.
    """
    for region in other_regions(cluster.spec, cluster.aws.region):
        at = home.in_region(region)
        there = at.known(cluster.name)
        if there is not None and not sleeps(there):
            return at
    return None
