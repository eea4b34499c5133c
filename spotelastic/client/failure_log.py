"""Describes why a job failed, and saves the log of the first failing rank before its node ends."""

import threading
from pathlib import Path

from spotelastic.client.logs import OutputLine, Wanted, tail
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.client.watch import JobOutcome
from spotelastic.clock import steady
from spotelastic.errors import SpotelasticError
from spotelastic.local.cloud import home
from spotelastic.model.progress import Event

EVERY = 0.25
"""Seconds between two looks for the log's last lines."""
PATIENCE = 5.0
"""Seconds to wait for the last lines of the log to arrive."""


def failed(result: JobOutcome) -> bool:
    """Whether the job ended in any other way than success."""
    return result.status.state != "succeeded"


def describe(result: JobOutcome, log: Path | None) -> str:
    """Return why the job did not succeed, and where its log is."""
    lines = [f"the job {result.status.state}: {result.status.reason.rstrip()}"]
    if log is not None:
        lines.append(f"log: {log}")
    return "\n".join(lines)


def keep(cluster: ShownCluster, result: JobOutcome) -> Path | None:
    """Save the log of the first failing rank in the user's folder, as its node is about to end.

    Returns the file; None if no rank failed, or if nothing could be read or written.
    """
    failure = next((event for event in result.events if event.data.get("log")), None)
    if failure is None:
        return None
    rank = int(failure.data["rank"])
    file = home() / "logs" / cluster.name / f"rank-{rank}.log"
    try:
        lines = _lines(cluster, failure, rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))
    except (SpotelasticError, OSError):
        return None
    return file if lines else None


def _lines(cluster: ShownCluster, failure: Event, rank: int) -> list[OutputLine]:
    """Return all lines of that rank on that node, waiting for the last ones to arrive."""
    words = failure.message.partition(": ")[2]
    deadline = steady() + PATIENCE
    while True:
        lines = list(tail(cluster, Wanted(rank, failure.node)))
        if any(words in line.text for line in lines) or steady() > deadline:
            return lines
        threading.Event().wait(EVERY)
