"""The end of a run: its last step is what it was for, and is waited for until it is committed."""

import os
import sys
import time

from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.types import DaemonStatus

from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import ALLOW_UNCOMMITTED
from spotelastic.training.runtime.session import Ranks, WorkerSession

AGAIN = 30.0
"""Seconds after which the same line is told again."""


def await_commit(client: WorkerClient, ranks: Ranks, step: int, within: float, saved: bool) -> None:
    """Waits for as long as the upload gets on, and `within` seconds without a byte.

    Raises `EnvironmentFailure` when the step was not `saved`, or its commit does not come.
    """

    told, told_at = "", 0.0

    def tell(status: DaemonStatus | None) -> None:
        nonlocal told, told_at
        line = f"waiting for the commit of step {step}{_progress(status)}"
        if ranks.rank == 0 and (line != told or time.monotonic() > told_at + AGAIN):
            told, told_at = line, time.monotonic()
            _say(line)

    committed = client.finish(within, tell)
    if saved and committed:
        return
    status = client.status()
    reason = (status.error if status is not None else "the checkpoint daemon is gone") or (
        "not all ranks' parts of it are in the storage" if saved else "it was not saved"
    )
    problem = f"step {step} could not be committed: {reason}"
    if os.environ.get(ALLOW_UNCOMMITTED) != "1":
        raise EnvironmentFailure(
            f"{problem} (with --allow-uncommitted, or "
            f"{ALLOW_UNCOMMITTED}=1, the run succeeds all the same)"
        )
    if ranks.local_rank == 0:
        _say(problem)


def tell_nothing_was_left(session: WorkerSession, step: int) -> None:
    """Of a script that has done no step, although it ended well."""
    if session.ranks.rank == 0:
        _say(
            f"no step was done: the run stood at step {step} already; to train from the "
            f"beginning, begin afresh with {session.afresh}"
        )


def _progress(status: DaemonStatus | None) -> str:
    if status is None:
        return ": the checkpoint daemon does not answer"
    upload = status.upload
    far = (
        f", {upload.done >> 20} of {upload.total >> 20} MiB are up"
        if upload and upload.total >> 20
        else ""
    )
    return f"{far}: {status.error}" if status.error else far


def _say(message: str) -> None:
    print(f"spotelastic: {message}", file=sys.stderr, flush=True)
