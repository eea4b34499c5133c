"""Reads what a cluster publishes about itself: its status and its costs."""

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.storage.object_store import Storage

from spotelastic.client.last_status import last_status
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import wall
from spotelastic.cloud.bucket import REGIONS, STOPPING, USAGE
from spotelastic.controller.accounting.usage import Bill, Usage, closed, cost, rates
from spotelastic.controller.model.regions import RegionsRecord
from spotelastic.errors import SpotelasticError
from spotelastic.metrics.job import PublishedFacts
from spotelastic.model.estimate import summary
from spotelastic.model.progress import ClusterSummary, Cost, Status

GONE_FOR = 14 * 86_400.0
"""Seconds for which clusters that are gone are listed: as long as their output is kept."""
NEWS = 86_400.0
"""Seconds for which a cluster that is gone is listed by what is wrong with it."""
SILENT = 20.0
"""Seconds after which a status is so old that its cluster may be gone."""


def status_of(cluster: ShownCluster) -> Status:
    """Return the published status of a cluster; before there is one, that its nodes boot."""
    status = cluster.objects.status()
    if status is None:
        return Status(cluster.name, "pending", cluster.spec.created_at, reason="nodes are booting")
    return status


def summary_of(cluster: ShownCluster, *, is_gone: bool = False) -> ClusterSummary:
    """Return the cluster as a row of a list; `is_gone`: that is known already."""
    status, now = status_of(cluster), wall()
    if is_gone:
        status, now = last_status(status, 0), status.at
    began_at = cluster.spec.born_at or cluster.spec.created_at
    return replace(summary(status, now), began_at=began_at, at=status.at, is_gone=is_gone)


def by_urgency(clusters: Iterable[ClusterSummary], now: float) -> list[ClusterSummary]:
    """Return the clusters in the order of a list, the worst first.

    A cluster that has been gone for less than a day is among these as well. Then come clusters that
    are there, then those that are gone, the last one first.
    """

    def order(each: ClusterSummary) -> tuple[int, bool, float, str]:
        weight = each.weight if is_news(each, now) else 0
        return -weight, each.is_gone, -each.at if each.is_gone else 0.0, each.name

    return sorted(clusters, key=order)


def is_news(each: ClusterSummary, now: float) -> bool:
    """Whether a cluster is there, or was until a day ago."""
    return not each.is_gone or now - each.at < NEWS


def is_gone(cluster: ShownCluster, status: Status) -> bool:
    """Whether the cluster does not exist any more; `status` is what it has stored last.

    Its cloud is asked only where that may be: controllers write each second while it exists, and
    who takes it down notes that first.
    """
    its = cluster.objects
    may_be = its.is_left or wall() - status.at > SILENT or its.has(STOPPING)
    return may_be and not cluster.is_there()


def newest_commit(open_storage: Callable[[str], Storage], url: str) -> int:
    """Return the newest step that is committed in a storage; 0: none, or it does not answer."""
    with suppress(SpotelasticError, CheckpointsError, OSError), closing(open_storage(url)) as its:
        commit = Commits(its, "").newest()
        return 0 if commit is None else commit.step
    return 0


def regions_of(cluster: ShownCluster) -> RegionsRecord | None:
    """Return what a job that moves by itself knows of its regions; None for any other job."""
    data = None if cluster.spec.regions is None else cluster.objects.get(REGIONS)
    return None if data is None else from_json(data, RegionsRecord)


def published_facts(cluster: ShownCluster) -> PublishedFacts:
    """Return what metrics of a cluster's job are made of, as its bucket has it. Three reads."""
    objects = cluster.objects
    events = tuple(objects.events())
    return PublishedFacts(cluster.name, objects.status(), objects.report(), events, cluster.spec)


def cost_of(cluster: ShownCluster) -> Cost:
    """Return the costs, from what the leading controller has recorded of every instance.

    For a cluster that is gone, up to its last report: no controller saw its instances end.
    """
    bill = _bill(cluster)
    if is_gone(cluster, status := status_of(cluster)):
        bill = closed(bill, status.at)
    return _cost(cluster, bill)


def running_cost_of(cluster: ShownCluster) -> Cost:
    """Return the costs of a cluster that is known to be up: this asks nothing but its bucket."""
    return _cost(cluster, _bill(cluster))


def rates_of(cluster: ShownCluster) -> tuple[tuple[float, float], ...]:
    """Return what all that runs has cost an hour, from each time on at which that has changed."""
    return rates(_bill(cluster))


def _bill(cluster: ShownCluster) -> Bill:
    data = cluster.objects.get(USAGE)
    return {item.instance: item for item in from_json(data or b"[]", list[Usage])}


def _cost(cluster: ShownCluster, bill: Bill) -> Cost:
    limit = cluster.spec.capacity.max_cost
    return cost(cluster.name, bill, cluster.objects.report(), wall(), limit)
