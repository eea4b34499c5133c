"""The checklist of a run on a real account: `make test-aws`. It costs money; see `PRICE`.

Needs credentials, a region, and SPOTELASTIC_AWS_SPEND=yes, because it creates what it says. The
credentials should be of a user who has infra/laptop.json and `tag:GetResources` and nothing else:
that these suffice, also for what CloudFormation does in that user's name, is part of the list. The
steps are one story: each stands on the ones before, and whatever happens, the cluster is taken
down and searched for at the end. What has been seen to work here is to be noted in
docs/how-to/prepare-an-account.md.

To be looked at by hand, because it costs more: a GPU type; one with several network cards (private
subnets, NAT, EFA); `--image`; `--placement cluster`; `shell` and `forward`; a laptop that is shut
while the job ends (`--linger`), and workers that nobody leads for an hour (the dead man's switch).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
import pytest

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.aws.base.names import SWITCH, Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.model.progress import Status

NAME = "first-run"
TYPE = "c5.large"
PRICE = (
    "three t3.small on demand ($0.0624 an hour), two c5.large spot (about $0.07 an hour), five "
    "public IPv4 addresses ($0.025 an hour), 224 GiB of gp3 ($0.025 an hour): about $0.10 for the "
    "half hour that this takes"
)
SECRET = "correct-horse-battery"
SCRIPT = """
import os, time, torch
import tabulate
import spotelastic as se
print("found", os.environ["FIRST_RUN_KEY"], tabulate.__version__, flush=True)
state = {"model": torch.nn.Linear(4, 4)}
with se.Checkpointer(state) as checkpoint:
    for step in range(checkpoint.restore() + 1, 100_000):
        time.sleep(0.1)
        checkpoint.step(step, loss=1.0)
"""
BOOT = 900.0
T = TypeVar("T")

pytestmark = [
    pytest.mark.aws,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.environ.get("SPOTELASTIC_AWS_SPEND") != "yes",
        reason=f"set SPOTELASTIC_AWS_SPEND=yes to spend {PRICE}",
    ),
]


@dataclass(frozen=True)
class Run:
    aws: Aws
    folder: Path

    def cli(self, *words: str) -> str:
        """A command as a user types it; its output."""
        command = [sys.executable, "-m", "spotelastic", *words]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | {"FIRST_RUN_KEY": SECRET},
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def cluster(self) -> ClusterRecord:
        found = clusters.find(NAME, self.aws)
        assert found is not None
        return found

    def status(self, wanted: Callable[[Status], bool], what: str) -> Status:
        def look() -> Status | None:
            found = self.cluster.objects.status()
            return found if found is not None and wanted(found) else None

        return eventually(look, what)


def eventually(look: Callable[[], T | None], what: str, timeout: float = BOOT) -> T:
    deadline = time.monotonic() + timeout
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(5.0)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "requirements.txt").write_text("tabulate==0.9.0\n")
    run = Run(Aws(), tmp_path)
    assert NAME not in clusters.all_names(run.aws), f"there is a cluster {NAME} already"
    try:
        yield run
    finally:
        clusters.delete(NAME, aws=run.aws, keep_data=False)
        assert tagged(run.aws.region) == []


def tagged(region: str) -> list[str]:
    """What still has the cluster's tag, over all services."""
    tagging: Any = boto3.client("resourcegroupstaggingapi", region_name=region)
    pages = tagging.get_paginator("get_resources").paginate(
        TagFilters=[{"Key": CLUSTER, "Values": [NAME]}]
    )
    found = [item["ResourceARN"] for page in pages for item in page["ResourceTagMappingList"]]
    # Instances that are terminated are told for an hour. What the workers have written stays.
    return [arn for arn in found if ":instance/" not in arn and ":log-group:" not in arn]


def test_the_first_run_on_a_real_account(run: Run) -> None:
    up = ("up", "--name", NAME, "--min", "1", "--max", "2", "--instance-types", TYPE)
    up = (*up, "--secret", "FIRST_RUN_KEY")
    assert "nothing was created" in run.cli(*up, "--plan")
    run.cli(*up, "--detach")
    a_job_trains_with_its_packages_and_its_secret(run)
    assert "changes: none" in run.cli(*up, "--detach")
    a_lost_leader_is_succeeded_and_its_node_replaced_with_address_and_disk(run)
    a_lost_worker_is_replaced(run)
    a_notice_is_seen_and_costs_no_step(run)
    run.cli("scale", NAME, "--max", "1")
    run.status(lambda s: s.world_size == 1, "one node")
    told = run.cli("down", NAME)
    assert "its checkpoints stay" in told
    assert "found *** 0.9.0" in run.cli("logs", NAME)
    assert tagged(run.aws.region) == []


def a_job_trains_with_its_packages_and_its_secret(run: Run) -> None:
    trains = run.status(lambda s: s.state == "running" and s.step > 10, "training")
    assert len({node.zone for node in trains.nodes if node.role == "control"}) == 3
    switches = run.aws.autoscaling.describe_scheduled_actions(
        AutoScalingGroupName=Names(NAME).workers
    )["ScheduledUpdateGroupActions"]
    assert [each["ScheduledActionName"] for each in switches] == [SWITCH]
    run.status(lambda s: s.committed > 0, "a checkpoint in the bucket")
    assert "step" in run.cli("status", NAME)
    eventually(
        lambda: "found *** 0.9.0" in run.cli("logs", NAME) or None, "the script's first line"
    )


def a_lost_leader_is_succeeded_and_its_node_replaced_with_address_and_disk(run: Run) -> None:
    leader = run.status(lambda s: bool(s.leader), "a leader").leader
    run.aws.ec2.terminate_instances(InstanceIds=[leader])
    run.status(lambda s: s.leader not in ("", leader), "another leader")
    run.status(
        lambda s: sum(n.state in ("leading", "standing by") for n in s.nodes) == 3,
        "a control node in the place of the lost one",
    )


def a_lost_worker_is_replaced(run: Run) -> None:
    lost = a_worker(run)
    run.aws.ec2.terminate_instances(InstanceIds=[lost])
    two_train_without(run, lost)


def a_notice_is_seen_and_costs_no_step(run: Run) -> None:
    """By the Fault Injection Service, as `spotelastic interrupt` does."""
    noticed = a_worker(run)
    run.cli("interrupt", noticed, "--name", NAME)
    two_train_without(run, noticed)
    report = json.loads(run.cli("report", NAME, "--json"))
    (notice,) = [each for each in report["interruptions"] if each["kind"] == "spot_interruption"]
    assert (notice["node"], notice["steps_lost"]) == (noticed, 0)


def a_worker(run: Run) -> str:
    trains = run.status(lambda s: s.world_size == 2, "two nodes that train")
    return next(n.id for n in trains.nodes if n.state == "training")


def two_train_without(run: Run, lost: str) -> None:
    run.status(
        lambda s: lost not in {n.id for n in s.nodes if n.state != "gone"} and s.world_size == 2,
        f"a worker in the place of {lost}",
    )
