"""Reads the newest output of a node's workers from the cluster's log group."""

from collections import deque

from spotelastic.aws.base.clients import Rejected, calling
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.clock import Clock, steady

LINES = 5000
"""Most lines of one node: the newest."""
WITHIN = 15.0
"""Seconds after which no further lines are read."""


def newest_lines(cluster: ClusterRecord, node: str, clock: Clock = steady) -> str:
    """Return the newest lines of the node's workers, each with its rank."""
    give_up, lines = clock() + WITHIN, deque[str](maxlen=LINES)
    try:
        with calling("read the logs"):
            pages = cluster.aws.logs.get_paginator("filter_log_events").paginate(
                logGroupName=cluster.spec.log_group, logStreamNamePrefix=f"{node}/"
            )
            for page in pages:
                for event in page["events"]:
                    rank = event["logStreamName"].rpartition("/")[2]
                    lines.append(f"{rank}: {event['message'].rstrip()}\n")
                if clock() >= give_up:
                    lines.append("[there was more, and no time to read it]\n")
                    break
    except Rejected as error:
        if error.code != "ResourceNotFoundException":
            raise
    return "".join(lines)
