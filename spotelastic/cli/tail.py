"""What the workers wrote, read from the cluster's log group."""

import math
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from spotelastic.aws import cluster as clusters
from spotelastic.aws.clients import Rejected, calling
from spotelastic.aws.cluster import Cluster
from spotelastic.cli.place import status_of
from spotelastic.clock import steady
from spotelastic.model.job import ENDED

EVERY = 1.0
"""Seconds between two looks for new lines."""
LATE = 5000
"""Milliseconds that lines may arrive after younger ones of another node, or after the job's end."""
STREAM = re.compile(r"(?P<node>[^/]+)/rank-(?P<rank>\d+)")


def tail(cluster: Cluster, *, follow: bool, rank: int | None, node: str | None) -> Iterator[str]:
    """Lines in the order they were written; with `follow` until the job has ended, or the cluster
    was taken down under it."""
    seen: set[str] = set()
    since = 0
    runs = False
    until = math.inf if follow else steady()
    while True:
        # Asked first, so that what was written before the end is read after it.
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
                if line := _line(event, rank, node):
                    yield line
        except Rejected as error:
            if error.code != "ResourceNotFoundException":
                raise
            # The group comes and goes with the stack, and the last status may say "running" still.
            if follow and clusters.find(cluster.name, cluster.aws) is None:
                return
        if steady() >= until:
            return
        threading.Event().wait(EVERY)


def _line(event: Mapping[str, Any], rank: int | None, node: str | None) -> str:
    """Empty where it is not of a rank, or not of the one that is asked for."""
    where = STREAM.fullmatch(event["logStreamName"])
    if where is None or (rank is not None and int(where["rank"]) != rank):
        return ""
    if node is not None and where["node"] != node:
        return ""
    return f"{where['node']} rank {where['rank']}: {event['message'].rstrip()}"


def _events(cluster: Cluster, since: int) -> Iterator[dict[str, Any]]:
    with calling("read the logs"):
        pages = cluster.aws.logs.get_paginator("filter_log_events").paginate(
            logGroupName=cluster.spec.log_group, startTime=since, interleaved=True
        )
        for page in pages:
            yield from page["events"]
