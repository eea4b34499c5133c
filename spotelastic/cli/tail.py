"""What the workers wrote, read from the cluster's log group."""

import re
import threading
from collections.abc import Iterator
from typing import Any

from spotelastic.aws.clients import Rejected, calling
from spotelastic.aws.cluster import Cluster
from spotelastic.cli.place import status_of
from spotelastic.model.job import ENDED

EVERY = 1.0
"""Seconds between two looks for new lines."""
LATE = 5000
"""Milliseconds that lines of one node may arrive after younger ones of another."""
STREAM = re.compile(r"(?P<node>[^/]+)/rank-(?P<rank>\d+)")


def tail(cluster: Cluster, *, follow: bool, rank: int | None, node: str | None) -> Iterator[str]:
    """Lines in the order they were written; with `follow` until the job has ended."""
    seen: set[str] = set()
    since = 0
    while True:
        # Asked first, so that what was written before the end is read after it.
        ended = status_of(cluster).state in ENDED
        for event in _events(cluster, since):
            if event["eventId"] in seen:
                continue
            seen.add(event["eventId"])
            since = max(since, event["timestamp"] - LATE)
            where = STREAM.fullmatch(event["logStreamName"])
            if where is None:
                continue
            if rank is not None and int(where["rank"]) != rank:
                continue
            if node is not None and where["node"] != node:
                continue
            yield f"{where['node']} rank {where['rank']}: {event['message'].rstrip()}"
        if ended or not follow:
            return
        threading.Event().wait(EVERY)


def _events(cluster: Cluster, since: int) -> Iterator[dict[str, Any]]:
    try:
        with calling("read the logs"):
            pages = cluster.aws.logs.get_paginator("filter_log_events").paginate(
                logGroupName=cluster.spec.log_group, startTime=since, interleaved=True
            )
            for page in pages:
                yield from page["events"]
    except Rejected as error:
        if error.code != "ResourceNotFoundException":  # no node has written anything yet
            raise
