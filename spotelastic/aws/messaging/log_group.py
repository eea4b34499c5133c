"""A cluster's log group in CloudWatch Logs, with the output of its workers.

`up` makes it, outside of the stack. So it outlives the cluster, however that ends, and a later
cluster of the same name writes to it again. A stream belongs to one worker of one cluster:

    <when the cluster was created, UTC>/<instance>/rank-<rank>
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spotelastic.aws.base.clients import Aws, Rejected, calling, listed, passing
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import Names
from spotelastic.model.job import NO_DEMANDS, AccountDemands

KEPT_DAYS = 14
"""Days after which CloudWatch deletes a line, unless the group's owner has set another time."""
_NONE = "ResourceNotFoundException"
"""AWS's code for a group that does not exist."""
_STREAM = re.compile(r"(?:(?P<born>\d{8}-\d{6})/)?(?P<node>[^/]+)/rank-(?P<rank>\d+)")


@dataclass(frozen=True, slots=True, order=True)
class LogStream:
    """The output of one worker of one cluster."""

    born: str
    """When the cluster was created; empty: by a version that did not record it."""
    node: str
    rank: int

    def __str__(self) -> str:
        return f"{prefix(self.born)}{self.node}/rank-{self.rank}"


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One line in the group."""

    id: str
    stream: LogStream
    at: int
    """When it was written, in milliseconds since the epoch."""
    text: str


def born(at: float) -> str:
    """Return a time of creation as streams name it; empty for 0, which means not known."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(at)) if at else ""


def prefix(born: str, node: str = "") -> str:
    """Return what the names of a cluster's streams begin with, or of those of one node."""
    return (f"{born}/" if born else "") + (f"{node}/" if node else "")


def parse(name: str) -> LogStream | None:
    """Return the stream of that name; None for one that is not a worker's."""
    found = _STREAM.fullmatch(name)
    return LogStream(found["born"] or "", found["node"], int(found["rank"])) if found else None


def ensure(aws: Aws, its: Names, demands: AccountDemands = NO_DEMANDS) -> None:
    """Make the group if there is none. A retention that somebody has set stays.

    One that is there gets the key of `demands` for what comes from now on.
    """
    tags = {**demands.tags, CLUSTER: its.cluster}
    key = {"kmsKeyId": demands.key} if demands.key else {}
    try:
        with calling(f"create the log group {its.log_group}"):
            aws.logs.create_log_group(logGroupName=its.log_group, tags=tags, **key)
    except Rejected as error:
        if error.code != "ResourceAlreadyExistsException":
            raise
        found = _described(aws, its.log_group)
        if key and found.get("kmsKeyId") != demands.key:
            with calling(f"encrypt the log group {its.log_group}"):
                aws.logs.associate_kms_key(logGroupName=its.log_group, **key)
        if found.get("retentionInDays"):
            return
    with calling(f"set the retention of the log group {its.log_group}"):
        aws.logs.put_retention_policy(logGroupName=its.log_group, retentionInDays=KEPT_DAYS)


def delete(aws: Aws, its: Names) -> None:
    """Delete the group with all lines, of earlier clusters too. A missing one is not an error."""
    with passing(_NONE), calling(f"delete the log group {its.log_group}"):
        aws.logs.delete_log_group(logGroupName=its.log_group)


def delete_if_empty(aws: Aws, its: Names) -> None:
    """Delete the group if no worker has ever written to it."""
    with passing(_NONE), calling(f"look into the log group {its.log_group}"):
        found = aws.logs.describe_log_streams(logGroupName=its.log_group, limit=1)
        if not found["logStreams"]:
            delete(aws, its)


def _described(aws: Aws, group: str) -> dict[str, Any]:
    with calling(f"look at the log group {group}"):
        found = aws.logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    return next((dict(it) for it in found if it["logGroupName"] == group), {})


@dataclass(frozen=True, slots=True)
class GroupOutput:
    """The output in a cluster's log group."""

    aws: Aws
    group: str

    def streams(self) -> list[LogStream]:
        """Return the streams of all workers, in order; none if there is no group."""
        with passing(_NONE), calling("list the logs"):
            call, key = "describe_log_streams", "logStreams"
            found = listed(self.aws.logs, call, key, logGroupName=self.group)
            return sorted(filter(None, (parse(each["logStreamName"]) for each in found)))
        return []

    def lines(self, begin: str = "", since: int = 0) -> Iterator[GroupLine]:
        """Yield the workers' lines by time, of streams whose names begin with `begin`.

        `since`: no lines before it, in milliseconds since the epoch. Without a group there are
        none.
        """
        wanted: dict[str, Any] = {"logStreamNamePrefix": begin} if begin else {}
        with passing(_NONE), calling("read the logs"):
            wanted |= {"logGroupName": self.group, "startTime": since, "interleaved": True}
            for event in listed(self.aws.logs, "filter_log_events", "events", **wanted):
                if stream := parse(event["logStreamName"]):
                    text = event["message"].rstrip()
                    yield GroupLine(event["eventId"], stream, event["timestamp"], text)
