"""Stage 2 of a first run on AWS: workers without GPUs train, are lost, noticed and scaled.

The credentials should be of a user who has infra/laptop.json, the statement `Interruptions` of
docs/reference/permissions.md and `tag:GetResources` and nothing else, in an account that has
infra/boundary.json: that these suffice, also for what CloudFormation does in that user's name, is
part of it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.aws.first_run import Run, eventually, marks, stage
from support.aws.first_run_scripts import TRAINS, with_facts

from spotelastic.aws.base.names import Names

pytestmark = marks(2)
SECRET = "correct-horse-battery"
UP = ("--min", "1", "--max", "2", "--instance-types", "c5.large", "--secret", "FIRST_RUN_KEY")


def test_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST_RUN_KEY", SECRET)
    (tmp_path / "requirements.txt").write_text("tabulate==0.9.0\n")
    with stage(2, tmp_path, with_facts(TRAINS)) as run:
        with run.check("the plan makes nothing"):
            assert "nothing was created" in run.cli("up", "--plan", *UP, "train.py")
        with run.check("it trains"):
            run.up(*UP, "train.py")
            run.status(lambda s: s.state == "running" and s.step > 10, "training")
        with run.check("packages, the secret and logs"):
            eventually(lambda: "found *** 0.9.0" in run.cli("logs", run.name) or None, "a line")
            run.facts_of_nodes()
        with run.check("a checkpoint is in the bucket"):
            run.status(lambda s: s.committed > 0, "a commit")
        with run.check("a lost worker is replaced"):
            lost = run.a_worker()
            run.aws.ec2.terminate_instances(InstanceIds=[lost])
            run.trains_without(lost)
        with run.check("a notice costs no step"):
            a_notice_costs_no_step(run)
        with run.check("shell and forward"):
            node = run.a_worker()
            assert "root" in run.cli("shell", node, "--name", run.name, stdin="whoami\nexit\n")
            forwards(run, node)
        with run.check("where nodes were launched"):
            where_nodes_were_launched(run)
        with run.check("scale"):
            run.cli("scale", run.name, "--max", "1")
            run.status(lambda s: s.world_size == 1, "one node")
        run.evidence.fact("report", json.loads(run.cli("report", run.name, "--json")))
        with run.check("logs are there after down"):
            assert "its checkpoints stay" in run.cli("down", run.name, "--yes")
            assert "found ***" in run.cli("logs", run.name)


def a_notice_costs_no_step(run: Run) -> None:
    """By the Fault Injection Service, as `spotelastic interrupt` does."""
    noticed = run.a_worker()
    run.cli("interrupt", noticed, "--name", run.name)
    run.trains_without(noticed)
    report = json.loads(run.cli("report", run.name, "--json"))
    (notice,) = [each for each in report["interruptions"] if each["kind"] == "spot_interruption"]
    assert (notice["node"], notice["steps_lost"]) == (noticed, 0)


def forwards(run: Run, node: str) -> None:
    shell = [sys.executable, "-m", "spotelastic", "shell", node, "--name", run.name]
    command = [*shell, "--forward", "22"]
    with subprocess.Popen(command, cwd=run.folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "it tells the port"
        finally:
            process.terminate()


def where_nodes_were_launched(run: Run) -> None:
    """Shows, if a zone was dry meanwhile, whether the leader could move the group to another."""
    (group,) = run.aws.autoscaling.describe_auto_scaling_groups(
        AutoScalingGroupNames=[Names(run.name).workers]
    )["AutoScalingGroups"]
    run.evidence.fact("zones of the group", group["AvailabilityZones"])
    run.evidence.fact(
        "activities of the group",
        run.aws.autoscaling.describe_scaling_activities(
            AutoScalingGroupName=Names(run.name).workers
        )["Activities"],
    )
