"""Reads what a cluster publishes about itself: its status and its costs."""

from spotelastic_checkpoints.decoders import from_json

from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.clock import wall
from spotelastic.cloud.bucket import USAGE
from spotelastic.controller.accounting.usage import Usage, closed, cost
from spotelastic.model.progress import Cost, Status


def status_of(cluster: ClusterRecord) -> Status:
    """Return the published status of a cluster; before there is one, that its nodes boot."""
    status = cluster.objects.status()
    if status is None:
        return Status(cluster.name, "pending", cluster.spec.created_at, reason="nodes are booting")
    return status


def cost_of(cluster: ClusterRecord) -> Cost:
    """Return the costs, from what the leading controller has recorded of every instance.

    For a cluster that is gone, up to its last report: no controller saw its instances end.
    """
    objects = cluster.objects
    data = objects.get(USAGE)
    bill = {item.instance: item for item in from_json(data or b"[]", list[Usage])}
    if lifecycle.find(cluster.name, cluster.aws) is None:
        bill = closed(bill, status_of(cluster).at)
    limit = cluster.spec.capacity.max_cost
    return cost(cluster.name, bill, objects.report(), wall(), limit)
