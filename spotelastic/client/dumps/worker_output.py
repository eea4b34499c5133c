"""Reads the newest output of a node's workers from the cluster's log group."""

from collections import deque

from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging import log_group
from spotelastic.clock import Clock, steady

LINES = 5000
"""Most lines of one node: the newest."""
WITHIN = 15.0
"""Seconds after which no further lines are read."""


def newest_lines(cluster: ClusterRecord, node: str, clock: Clock = steady) -> str:
    """Return the newest lines of the node's workers, each with its rank."""
    give_up, lines = clock() + WITHIN, deque[str](maxlen=LINES)
    begin = log_group.prefix(log_group.born(cluster.spec.born_at), node)
    for line in cluster.output.lines(begin):
        lines.append(f"rank-{line.stream.rank}: {line.text}\n")
        if clock() >= give_up:
            lines.append("[there was more, and no time to read it]\n")
            break
    return "".join(lines)
