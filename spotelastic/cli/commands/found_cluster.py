"""Finds the cluster that a command is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spotelastic.errors import SeveralClusters
from spotelastic.wrapping import note

if TYPE_CHECKING:
    from spotelastic.client.cluster import Cluster


def found_cluster(
    name: str | None,
    where: bool | None,
    region: str | None,
    *,
    gone: bool = False,
    left: str = "this is its last report",
) -> "Cluster":
    """Return the cluster of that name, or the only one. Raises `UsageError` if there is none.

    `gone`: also one that was taken down and has left its last report. `left` says what that is.
    """
    from spotelastic.client.cluster import Cluster
    from spotelastic.client.targets.find import found

    return Cluster(*found(name, where, region, note, gone=gone, left=left))


@contextmanager
def named_by_option() -> Iterator[None]:
    """Say that --name names a cluster, in a command whose argument is something else."""
    try:
        yield
    except SeveralClusters as error:
        raise SeveralClusters(error.names, "--name") from None
