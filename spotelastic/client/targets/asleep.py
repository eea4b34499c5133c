"""Finds the region in which a job that moves by itself is: in the others its cluster is asleep."""

from spotelastic.aws.clusters import asleep
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.client.targets.cloud_target import CloudTarget


def sleeps(cluster: ClusterRecord) -> bool:
    """Whether the cluster is asleep: its job moves by itself, and is in another region."""
    return cluster.spec.regions is not None and not asleep.is_awake(cluster.aws, cluster.name)


def others(cluster: ClusterRecord) -> tuple[str, ...]:
    """Return the other regions in which the job has a cluster, one way or the other."""
    names = () if cluster.spec.regions is None else cluster.spec.regions.names
    return tuple(region for region in names if region != cluster.aws.region)


def awake(home: CloudTarget, cluster: ClusterRecord) -> CloudTarget | None:
    """Return the region in which the job of a cluster that is asleep is.

    None while it is moved, when it may be in no region.
    """
    for region in others(cluster):
        at = home.in_region(region)
        there = at.known(cluster.name)
        if there is not None and not sleeps(there):
            return at
    return None
