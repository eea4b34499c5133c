"""Whole jobs on the local cloud, of which a controller stands still.

Each job tells every step: what it computed is what a run without interruptions computes.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import exactly
from support.exactly import SCRIPT, TESTS
from support.trial import NAME, ONE_LEADS, Trial, controllers, eventually, running_trial

from spotelastic.aws import autoscaling
from spotelastic.aws.autoscaling import ALIVE, Machine
from spotelastic.local import cloud
from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.progress import Report, Status

pytestmark = pytest.mark.soak

TYPE = "c5.large"
STEP_TIME = "0.05"
SAVES = {"snapshot_every": Interval(5), "checkpoint_every": Interval(20)}


@contextmanager
def running_job(folder: Path, **request: Any) -> Iterator[Trial]:
    with running_trial(
        folder,
        boot=cloud.BOOT,
        script=SCRIPT.read_text(),
        args=(str(folder), STEP_TIME),
        env={"PYTHONPATH": str(TESTS)},
        instance_types=(TYPE,),
        **request,
    ) as trial:
        yield trial


def machines(trial: Trial, role: str = "worker") -> dict[str, Machine]:
    """Every one that there ever was."""
    return {m.id: m for m in autoscaling.machines(trial.cluster.aws, NAME, role)}


def training(status: Status) -> set[str]:
    return {node.id for node in status.nodes if node.state == "training"}


def said(control: str) -> str:
    """All that a control node has said so far."""
    info = cloud.find()
    assert info is not None
    return Path(info.folder, "instances", control, "console.log").read_text()


def finishes(trial: Trial, folder: Path) -> Report:
    """The report of the job, whose steps were right and are all accounted for."""
    (folder / "stop").touch()
    trial.status(lambda status: status.state == "succeeded", "the end of the job")
    eventually(
        lambda: all(m.state not in ALIVE for m in machines(trial).values()) or None,
        "an end of all workers",
    )
    last, report = exactly.check(folder), trial.cluster.objects.report()
    assert report is not None
    lost = sum(row.steps_lost or 0 for row in report.interruptions)
    assert (report.job.final_step, report.job.steps_run) == (last, last + lost)
    return report


@contextmanager
def standing_still(trial: Trial, control: str) -> Iterator[None]:
    """The controller there, as on a machine that hangs."""
    processes = trial.faults.processes(control)
    (pid,) = (each.pid for each in processes if each.role == "se-controller")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_leader_that_stood_still_does_nothing_about_what_another_one_handles(
    tmp_path: Path,
) -> None:
    with running_job(tmp_path, settings=Settings(1, 2, workers=1, **SAVES)) as trial:
        before = trial.status(
            lambda s: len(training(s)) == 2 and s.committed > 0 and controllers(s) == ONE_LEADS,
            "a job that trains",
        )
        victim, other = sorted(training(before))
        with standing_still(trial, before.leader):
            seen = trial.status(lambda s: s.leader not in ("", before.leader), "another leader")
            heard = len(said(before.leader))
            trial.faults.interrupt(victim, 15.0)
        after = trial.status(
            lambda s: len(training(s) - {victim}) == 2 and controllers(s) == ONE_LEADS,
            "a job with another node",
        )
        assert after.leader == seen.leader
        assert "leads" in said(seen.leader)
        assert "lost" in said(before.leader)[heard:]
        assert " goes: " not in said(before.leader)[heard:]
        ended = [line for line in said(seen.leader).splitlines() if f"{victim} goes: " in line]
        assert len(ended) == 1
        eventually(
            lambda: machines(trial)[victim].state == "terminated" or None, "an end of the victim"
        )
        report = finishes(trial, tmp_path)
        assert len(machines(trial)) == 3, "one was replaced, once"
        assert {victim, other} < set(machines(trial))
        (row,) = report.interruptions
        assert (row.kind, row.node, row.steps_lost) == ("notice", victim, 0)
