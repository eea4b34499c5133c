"""Why a job failed: the first failing rank, its traceback, and its log, which outlives the node."""

import threading
from pathlib import Path

from spotelastic.aws.clusters.lifecycle import Cluster
from spotelastic.cli.commands.watch import JobOutcome
from spotelastic.client.logs import Wanted, tail
from spotelastic.clock import steady
from spotelastic.errors import SpotelasticError
from spotelastic.local.cloud import home
from spotelastic.model.progress import Event

EVERY = 0.25
"""Seconds between two looks for the log's last lines."""
PATIENCE = 5.0
"""Seconds that the last lines may take to arrive."""


def failed(result: JobOutcome) -> bool:
    return result.status.state != "succeeded"


def describe(result: JobOutcome, log: Path | None) -> str:
    """Why the job did not succeed: the first failing rank, its traceback, where its log is."""
    lines = [f"the job {result.status.state}: {result.status.reason.rstrip()}"]
    if log is not None:
        lines.append(f"log: {log}")
    return "\n".join(lines)


def keep_log(cluster: Cluster, result: JobOutcome) -> Path | None:
    """Saves what the first failing rank wrote in the user's folder: its node is about to end.

    Returns the file; None where no rank failed, or nothing could be read or written.
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


def _lines(cluster: Cluster, failure: Event, rank: int) -> list[str]:
    """All of that rank on that node; what it wrote last may still be on its way."""
    words = failure.message.partition(": ")[2]
    deadline = steady() + PATIENCE
    while True:
        lines = list(tail(cluster, Wanted(rank, failure.node)))
        if any(words in line for line in lines) or steady() > deadline:
            return lines
        threading.Event().wait(EVERY)
