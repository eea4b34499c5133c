"""Conducts a rehearsal: makes what it needs on this machine, and takes that away again."""

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spotelastic.client.rehearsal import copies, rehearsal_plan, without
from spotelastic.client.rehearsal.acts import Acts
from spotelastic.client.rehearsal.answer import RehearsalAnswer
from spotelastic.client.rehearsal.nodes import Nodes
from spotelastic.client.rehearsal.runs import Played, RehearsedScript, Runs
from spotelastic.errors import JobFailed, UsageError
from spotelastic.model.counting import counted

AT_ONCE = 2
"""Acts that run at the same time."""
_ALONE = "torch.distributed is not initialised"
"""What a Checkpointer says to several ranks that have no process group."""


def gpus() -> int:
    """Return how many GPUs of NVIDIA this machine has."""
    return len([*Path("/dev").glob("nvidia[0-9]*")])


def rehearse(job: RehearsedScript, within: float, say: Callable[[str], None]) -> RehearsalAnswer:
    """Rehearse a script, and return what was found. No act may take longer than `within` seconds.

    Raises `JobFailed` where the script fails by itself.
    """
    from spotelastic.store.etcd_server.process import standalone
    from spotelastic.store.tls import make_files

    copies.check(job.folder)
    base = Path(tempfile.mkdtemp(prefix="spotelastic-rehearsal-"))
    try:
        tls = make_files(base / "secrets")
        with standalone(base / "etcd", tls=tls) as etcd, ThreadPoolExecutor(AT_ONCE) as pool:
            nodes = Nodes(etcd.endpoint, tls, within, job.gpus)
            try:
                return _conduct(Runs(job, nodes, base, say), pool)
            finally:
                nodes.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _conduct(runs: Runs, pool: ThreadPoolExecutor) -> RehearsalAnswer:
    def twice(*names: str, **orders: Any) -> list[Played]:
        made = [pool.submit(runs.plain, name, runs.ranks, keeps=True, **orders) for name in names]
        return [each.result() for each in made]

    plain, again = twice("plain", "again")
    if _ALONE in plain.failed and not runs.job.ranks:
        runs.ranks = 1
        plain, again = twice("plain-alone", "again-alone")
    if plain.failed:
        raise JobFailed(f"the script fails without any interruption: {plain.failed}")
    last = plain.record.last
    if not last:
        return without.play(runs, plain, again)
    if last < rehearsal_plan.FEWEST:
        raise UsageError(
            f"the script makes {counted(last, 'step')}: a rehearsal needs {rehearsal_plan.FEWEST} "
            "at least. Give it arguments for more"
        )
    asked = runs.job.steps or rehearsal_plan.STEPS
    whole = rehearsal_plan.reach(last, plain.record.epoch, plain.record.pace)
    if whole > last == asked and not runs.job.steps:
        plain, again = twice("plain-whole", "again-whole", steps=(asked := whole))
    return Acts(runs, plain, again, is_over=plain.record.last < asked).play(pool)
