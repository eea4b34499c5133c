"""Finds the cluster that a command is about."""

from typing import TYPE_CHECKING

from spotelastic.wrapping import note

if TYPE_CHECKING:
    from spotelastic.client.cluster import Cluster

LAST_REPORT = "this is its last report"


def found_cluster(
    name: str | None,
    where: bool | None,
    region: str | None,
    *,
    gone: bool = False,
    left: str = LAST_REPORT,
) -> "Cluster":
    """Return the cluster of that name, or the only one. Raises `UsageError` if there is none.

    `gone`: also one that was taken down and has left its last report. `left` says what that is.
    """
    from spotelastic.client.cluster import Cluster
    from spotelastic.client.targets.find import find, holding

    target = holding(find(where, region, note), name, note)
    record = target.cluster_or_gone(name, note, left) if gone else target.cluster(name)
    return Cluster(target, record)
