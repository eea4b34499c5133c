"""Waits at the end of a run until its last step is committed, or fails the script."""

import os
import time

from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.types import DaemonStatus

from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import ALLOW_UNCOMMITTED
from spotelastic.training.runtime.arena_folder import say
from spotelastic.training.runtime.session import Ranks, WorkerSession

AGAIN = 30.0
"""Seconds after which the same line is printed again."""


def await_commit(client: WorkerClient, ranks: Ranks, step: int, within: float, saved: bool) -> None:
    """Wait for the commit of the last step, as long as its upload makes progress.

    `within` are the seconds without a byte after which it is given up. Raises `EnvironmentFailure`
    when the step was not `saved`, or is not committed.
    """
    told, told_at = "", 0.0

    def tell(status: DaemonStatus | None) -> None:
        nonlocal told, told_at
        line = f"waiting for the commit of step {step}{_progress(status)}"
        if ranks.rank == 0 and (line != told or time.monotonic() > told_at + AGAIN):
            told, told_at = line, time.monotonic()
            say(line)

    committed = client.finish(within, tell)
    if saved and committed:
        return
    status = client.status()
    reason = (status.error if status is not None else "the checkpoint daemon does not answer") or (
        "not all ranks' parts of it are in the storage" if saved else "it was not saved"
    )
    problem = f"step {step} could not be committed: {reason}"
    if os.environ.get(ALLOW_UNCOMMITTED) != "1":
        raise EnvironmentFailure(
            f"{problem} (with --allow-uncommitted, or "
            f"{ALLOW_UNCOMMITTED}=1, the run succeeds all the same)"
        )
    if ranks.local_rank == 0:
        say(problem)


def tell_nothing_was_left(session: WorkerSession, step: int) -> None:
    """Report that a script ended well without a step."""
    if session.ranks.rank == 0:
        say(
            f"no step was executed: the run had already reached step {step}; to train from the "
            f"beginning, begin afresh with {session.afresh}"
        )


def _progress(status: DaemonStatus | None) -> str:
    if status is None:
        return ": the checkpoint daemon does not answer"
    upload = status.upload
    far = (
        f", {upload.done >> 20} of {upload.total >> 20} MiB uploaded"
        if upload and upload.total >> 20
        else ""
    )
    return f"{far}: {status.error}" if status.error else far
