"""Reads the output of workers from the cluster's log group, for `spotelastic logs`."""

import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spotelastic.aws.base.clients import Rejected, calling
from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.client.published import status_of
from spotelastic.clock import steady
from spotelastic.errors import UsageError
from spotelastic.model.job import ENDED

EVERY = 1.0
"""Seconds between two looks for new lines."""
LATE = 5000
"""Milliseconds by which lines may arrive after younger lines of another node, or after the job's
end."""
STREAM = re.compile(r"(?P<node>[^/]+)/rank-(?P<rank>\d+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects lines by rank, by node, by both or by neither."""

    rank: int | None = None
    node: str | None = None

    def takes(self, node: str, rank: int) -> bool:
        """Whether a worker's lines are selected."""
        return self.rank in (None, rank) and self.node in (None, node)

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}"
        node = self.node or ""
        return " on ".join(filter(None, (rank, node))) or "the workers"


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One line that a worker has written."""

    node: str
    rank: int
    at: float
    """When it was written, in seconds since the epoch."""
    text: str

    def __str__(self) -> str:
        return f"{self.node} rank {self.rank}: {self.text}"


ALL = Wanted()


def tail(
    cluster: ClusterRecord,
    wanted: Wanted = ALL,
    *,
    follow: bool = False,
    note: Callable[[str], None] | None = None,
) -> Iterator[OutputLine]:
    """Yield lines in the order they were written.

    With `follow`, until the job has ended or the cluster was taken down. `note` is called if there
    is nothing to show; with `note`, an unknown node or rank raises `UsageError`.
    """
    seen: set[str] = set()
    wrote: set[tuple[str, int]] = set()
    looked = False
    since = 0
    runs = False
    until = math.inf if follow else steady()
    while True:
        # The status is read first, so that lines written before the end are still read.
        if until == math.inf:
            ended = status_of(cluster).state in ENDED
            until = steady() + (LATE / 1000 if runs else 0.0) if ended else math.inf
            runs = not ended
        try:
            for event in _events(cluster, since):
                if event["eventId"] in seen:
                    continue
                seen.add(event["eventId"])
                since = max(since, event["timestamp"] - LATE)
                if where := STREAM.fullmatch(event["logStreamName"]):
                    writer = where["node"], int(where["rank"])
                    wrote.add(writer)
                    if wanted.takes(*writer):
                        at = event["timestamp"] / 1000
                        yield OutputLine(*writer, at, event["message"].rstrip())
        except Rejected as error:
            if error.code != "ResourceNotFoundException":
                raise
            # The log group comes and goes with the stack; the last status may still say "running".
            if follow and lifecycle.find(cluster.name, cluster.aws) is None:
                return
        if note is not None and not looked:
            looked = True
            _check(cluster, wanted, wrote, follow=follow, note=note)
        if steady() >= until:
            return
        threading.Event().wait(EVERY)


def _check(
    cluster: ClusterRecord,
    wanted: Wanted,
    wrote: Collection[tuple[str, int]],
    *,
    follow: bool,
    note: Callable[[str], None],
) -> None:
    """After the first look, explain why the selection has no lines, if it has none."""
    if any(wanted.takes(*writer) for writer in wrote):
        return
    rows = status_of(cluster).nodes
    nodes = sorted({node for node, _ in wrote} | {row.id for row in rows if row.role == "worker"})
    ranks = sorted({rank for _, rank in wrote} | {rank for row in rows for rank in row.ranks})
    if wanted.node is not None and wanted.node not in nodes:
        control = any(row.id == wanted.node for row in rows)
        what = "is a control node, without workers," if control else "is not a node"
        raise UsageError(
            f"--node {wanted.node} {what} of {cluster.name}; the nodes are: "
            f"{', '.join(nodes) or 'none'}"
        )
    if wanted.rank is not None and ranks and wanted.rank not in ranks and not follow:
        raise UsageError(
            f"--rank {wanted.rank}: {cluster.name} has no such rank; the ranks are: {_span(ranks)}"
        )
    note(f"{wanted}: no output yet")


def _span(ranks: Sequence[int]) -> str:
    """Return sorted ranks as text; there may be gaps if only some ranks have written."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _events(cluster: ClusterRecord, since: int) -> Iterator[dict[str, Any]]:
    with calling("read the logs"):
        pages = cluster.aws.logs.get_paginator("filter_log_events").paginate(
            logGroupName=cluster.spec.log_group, startTime=since, interleaved=True
        )
        for page in pages:
            yield from page["events"]
