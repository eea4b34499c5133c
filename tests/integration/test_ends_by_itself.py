"""Clusters that end by themselves, with no command of anybody's around."""

from pathlib import Path
from typing import Any

import pytest
from support.clusters.trial_cluster import NAME, Trial, eventually, nothing_is_left, running_trial

from spotelastic.aws.base.names import Names
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.network import cloudformation
from spotelastic.local import cloud
from spotelastic.model.job import Settings

pytestmark = pytest.mark.soak

LINGER = 2.0
CLUSTER: dict[str, Any] = {
    "boot": cloud.BOOT,
    "settings": Settings(1, 1, workers=1),
    "linger": LINGER,
}
SETUP = "echo looking for the licence; echo no licence server >&2; exit 3"

SCRIPT = """
import torch
import spotelastic as se

with se.Checkpointer({"model": torch.nn.Linear(2, 1)}) as checkpoint:
    for step in range(checkpoint.restore() + 1, 11):
        checkpoint.step(step)
"""


def test_after_the_job_the_workers_go_at_once_and_later_all_but_the_checkpoints(
    tmp_path: Path,
) -> None:
    with running_trial(tmp_path, **CLUSTER, script=SCRIPT) as trial:
        ended = trial.status(lambda status: status.state == "succeeded", "the end of the job")
        eventually(lambda: launches_nothing(trial), "an end of launches")
        assert (
            cloudformation.describe(trial.cluster.aws, Names(NAME).stack) is not None
        )  # it lingers
        is_dissolved(trial)
        left = trial.cluster.objects.names("checkpoints/")
    assert ended.step == 10
    assert "checkpoints/LATEST" in left
    assert any(name.endswith("/.metadata") for name in left)


def test_three_boots_that_fail_alike_fail_the_job_and_the_cluster_goes(tmp_path: Path) -> None:
    with running_trial(tmp_path, **CLUSTER, setup=SETUP) as trial:
        ended = trial.status(lambda status: status.state == "failed", "the end of the job")
        report = trial.cluster.objects.report()
        eventually(lambda: launches_nothing(trial), "an end of launches")
        launched = workers(trial)
        is_dissolved(trial)
        assert workers(trial) == launched
        events = trial.cluster.objects.events()
    told = [event for event in events if event.kind == "boot"]
    assert len(told) >= 3
    for event in told:
        assert "it has shut itself down" in event.message
        assert event.data["said"].endswith("ended with 3")
    assert "3 instances in a row did not boot: --setup" in ended.reason
    assert "looking for the licence\nno licence server\n" in ended.reason
    assert report is not None and report.job.state == "failed"
    assert any(e.kind == "job" and e.message == f"failed: {ended.reason}" for e in events)


def launches_nothing(trial: Trial) -> bool | None:
    found = autoscaling.group(trial.cluster.aws, Names(NAME).workers)
    return None if found is not None and found.desired else True


def workers(trial: Trial) -> set[str]:
    """All that were ever launched."""
    found = autoscaling.instances(trial.cluster.aws, NAME, "worker")
    return {machine.id for machine in found}


def is_dissolved(trial: Trial) -> None:
    """Nobody asks for it; only the bucket stays, with the account of what was."""

    def gone() -> bool | None:
        try:
            nothing_is_left(trial.cluster.aws)
        except AssertionError:
            return None
        return True

    eventually(gone, "an account with nothing of the cluster")
    assert trial.cluster.objects.report() is not None
