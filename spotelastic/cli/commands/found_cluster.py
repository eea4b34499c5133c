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
    from spotelastic.client.targets.find import find, located

    return Cluster(*located(find(where, region, note), name, note, gone=gone, left=left))
