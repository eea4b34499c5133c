"""Finds the cluster that a command is about."""

from typing import TYPE_CHECKING

from spotelastic.errors import UsageError
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
    from spotelastic.client.targets.find import find, following, holding

    target = find(where, region, note)
    if not gone:
        try:
            its = target.cluster(name)
        except UsageError:
            if (elsewhere := holding(target, name, note)) is target:
                raise
            return Cluster(elsewhere, elsewhere.cluster(name))
    else:
        target = holding(target, name, note)
        its = target.cluster_or_gone(name, note, left)
    if (elsewhere := following(target, its, note)) is target:
        return Cluster(target, its)
    return Cluster(elsewhere, elsewhere.cluster(its.name))
