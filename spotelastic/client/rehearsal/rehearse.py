"""Rehearses a script: makes what a rehearsal needs on this machine, and takes it away again."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from spotelastic.client.rehearsal import copies
from spotelastic.client.rehearsal.answer import Answer
from spotelastic.client.rehearsal.conduct import Job, Rehearsal
from spotelastic.client.rehearsal.nodes import Nodes


def gpus() -> int:
    """Return how many GPUs of NVIDIA this machine has."""
    return len([*Path("/dev").glob("nvidia[0-9]*")])


def rehearse(job: Job, within: float, say: Callable[[str], None]) -> Answer:
    """Rehearse a script, and return what was found. No act may take longer than `within` seconds.

    Raises `JobFailed` where the script fails by itself.
    """
    from spotelastic.store.etcd_server.process import standalone

    if not job.here:
        copies.check(job.folder)
    base = Path(tempfile.mkdtemp(prefix="spotelastic-rehearsal-"))
    try:
        with standalone(base / "etcd") as etcd:
            nodes = Nodes(etcd.endpoint, within, job.gpus)
            try:
                return Rehearsal(job, nodes, base, say).conduct()
            finally:
                nodes.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)
