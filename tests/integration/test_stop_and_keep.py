"""Whole jobs on the local cloud that end before they are done, and what is left of them."""

import re
from pathlib import Path

import pytest
from support.clusters.trial_cluster import (
    NAME,
    ONE_LEADS,
    Trial,
    controllers,
    eventually,
    running_trial,
)

from spotelastic.aws.compute import autoscaling
from spotelastic.client import commands
from spotelastic.client.confirmation import nobody_asked
from spotelastic.cloud.model import ALIVE
from spotelastic.local import cloud
from spotelastic.model.interval import Interval
from spotelastic.model.job import Capacity, Settings

pytestmark = pytest.mark.soak

SETTINGS = Settings(2, 2, workers=1, max_restarts=0, checkpoint_every=Interval(1_000_000))
"""Nothing is committed but at the end."""
SCRIPT = """
import time
from pathlib import Path

import torch
import torch.distributed as dist
import spotelastic as se

folder = Path({folder!r})
dist.init_process_group("gloo")
torch.manual_seed(0)
with se.Checkpointer({{"model": torch.nn.Linear(2, 1)}}) as checkpoint:
    step = checkpoint.restore()
    while True:
        dist.barrier()
        if dist.get_rank() == 1 and (folder / "fail").exists():
            raise ValueError("asked to fail")
        step += 1
        if dist.get_rank() == 0:
            with (folder / "steps").open("a") as file:
                file.write(f"{{step}}\\n")
        checkpoint.step(step)
        time.sleep(0.05)
"""


def executed(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "steps").read_text().split()]


def alive(trial: Trial) -> set[str]:
    found = autoscaling.instances(trial.cluster.aws, NAME, "worker")
    return {machine.id for machine in found if machine.state in ALIVE}


def commits(trial: Trial) -> set[int]:
    """Their steps."""
    names = trial.cluster.objects.names("checkpoints/")
    found = (re.search(r"/step-(\d+)/\.metadata$", name) for name in names)
    return {int(match[1]) for match in found if match}


def restart(trial: Trial, folder: Path) -> None:
    told = commands.restart(
        trial.cluster,
        folder,
        same_code=True,
        environment=None,
        deadline=None,
        max_cost=None,
        confirm=nobody_asked,
    )
    begins = r"is restarted from (step \d+|the beginning: it has no checkpoint)"
    assert re.fullmatch(begins, told.text)


def test_a_stopped_job_has_committed_its_last_step_and_goes_on_after_it(tmp_path: Path) -> None:
    script = SCRIPT.format(folder=str(tmp_path))
    with running_trial(tmp_path, boot=cloud.BOOT, script=script, settings=SETTINGS) as trial:
        trial.status(lambda status: status.step > 20, "a job that trains")
        done = commands.stop(trial.cluster, wait=True, say=lambda _: None)
        last = executed(tmp_path)[-1]
        assert done.text == f"has stopped: stopped by command; step {last} is committed"
        eventually(lambda: None if alive(trial) else True, "an end of all workers")
        trial.status(
            lambda status: (
                controllers(status) == ONE_LEADS
                and all(node.role == "control" for node in status.nodes)
            ),
            "control nodes and nobody else",
        )
        assert max(commits(trial)) == last
        restart(trial, tmp_path)
        trial.status(lambda status: status.step > last + 10, "a job that goes on")
        steps = executed(tmp_path)
        assert steps == list(range(1, len(steps) + 1)), "each once, in order"


def test_the_node_that_failed_a_job_is_kept_until_it_is_restarted(tmp_path: Path) -> None:
    script, capacity = SCRIPT.format(folder=str(tmp_path)), Capacity(keep_failed=True)
    with running_trial(
        tmp_path, boot=cloud.BOOT, script=script, settings=SETTINGS, capacity=capacity
    ) as trial:
        before = trial.status(lambda status: status.step > 5, "a job that trains")
        (tmp_path / "fail").touch()
        ended = trial.status(lambda status: status.state == "failed", "the end of the job")
        assert "asked to fail" in ended.reason
        (failed,) = [node.id for node in before.nodes if node.ranks == (1,)]
        eventually(lambda: True if alive(trial) == {failed} else None, "an end of the other one")
        left = trial.status(
            lambda status: [n.id for n in status.nodes if n.role == "worker"] == [failed],
            "a status of the one that is kept",
        )
        assert [node.state for node in left.nodes if node.id == failed] == ["failed"]
        assert trial.group().desired == 1
        (tmp_path / "fail").unlink()
        restart(trial, tmp_path)
        trial.status(lambda status: status.step > ended.step + 5, "a job that goes on")
        eventually(lambda: None if failed in alive(trial) else True, "an end of what was kept")
