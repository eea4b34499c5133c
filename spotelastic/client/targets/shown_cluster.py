"""Defines what a cluster is to the commands, wherever it is.

AWS's `ClusterRecord` is one, for the local cloud, too; a cluster on Kubernetes is another.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from spotelastic.aws.messaging.log_group import GroupLine, LogStream
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.model.job import JobSpec
from spotelastic.model.requests.command import Command


class OutputSource(Protocol):
    """The kept output of all clusters of one name."""

    def streams(self) -> list[LogStream]:
        """Return the streams of all workers."""

    def lines(self, begin: str, since: int) -> Iterator[GroupLine]:
        """Yield lines by time, of streams that begin so, and since then (in milliseconds)."""


class ShownCluster(Protocol):
    """A cluster that exists, or what is left of one."""

    @property
    def name(self) -> str:
        """The cluster's name."""

    @property
    def spec(self) -> JobSpec:
        """The description of its job, as it was when the cluster was looked for."""

    @property
    def objects(self) -> ClusterBucket:
        """What it publishes."""

    @property
    def output(self) -> OutputSource:
        """What its workers have written."""

    def is_there(self) -> bool:
        """Whether the cluster still exists."""

    def send(self, command: Command) -> None:
        """Send a command to its controller."""

    def change(self, how: Callable[[JobSpec], JobSpec], archive: bytes = b"") -> JobSpec:
        """Change the stored description of the job, keeping what others change at the same time.

        `archive` is its code, if that is new.
        """
