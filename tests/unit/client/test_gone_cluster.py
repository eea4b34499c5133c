"""What is shown of a cluster that is gone: one state, one newest step and one bill everywhere."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit
from support.clusters.memory_bucket import MemoryBucket
from support.clusters.published_cluster import BEGAN, REPORT, STATUS

from spotelastic.client.cluster import Cluster
from spotelastic.client.targets.cloud_target import ClusterTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import wall
from spotelastic.cloud.bucket import REPORT as REPORT_JSON
from spotelastic.cloud.bucket import STATUS as STATUS_JSON
from spotelastic.cloud.bucket import STOPPING, USAGE
from spotelastic.controller.accounting.usage import Usage
from spotelastic.model.counting import HOUR
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.progress import Status

NAME = "quokka"
USED = (
    Usage("i-1", "g6.xlarge", True, BEGAN, None, 0.25, 1.0),
    Usage("i-9", "t4g.small", False, BEGAN, None, 0.1, 0.1, role="control"),
)


@dataclass
class Left:
    """A cluster whose existence can be changed, and that counts how often it is asked about."""

    spec: JobSpec
    there: bool = False
    asked: int = 0
    name: str = NAME
    objects: MemoryBucket = field(default_factory=lambda: MemoryBucket(NAME))

    def is_there(self) -> bool:
        self.asked += 1
        return self.there


@pytest.fixture
def left(tmp_path: Path) -> Left:
    """What a cluster leaves that was taken down in its second hour, at step 340."""
    spec = JobSpec(NAME, NAME, "train.py", (), "", Settings(1, 2), str(tmp_path), ())
    its = Left(spec)
    status = replace(STATUS, name=NAME, state="running", step=340, committed=258, at=BEGAN + HOUR)
    its.objects.put(STATUS_JSON, msgspec.json.encode(status))
    report = replace(REPORT, usd_per_hour=0.25, total_usd_per_hour=0.35, total_usd=0.3)
    its.objects.put(REPORT_JSON, msgspec.json.encode(report))
    its.objects.put(USAGE, msgspec.json.encode(USED))
    return its


def commit(storage: Path, epoch: int, step: int) -> None:
    its = storage / folder(Commit(epoch, step))
    its.mkdir(parents=True)
    (its / ".metadata").write_bytes(b"a record")


def handle(record: Left) -> Cluster:
    target: Any = SimpleNamespace(storage=open_storage, check=lambda: None)
    return Cluster(cast(ClusterTarget, target), cast(ShownCluster, record))


def test_a_job_whose_cluster_was_taken_down_is_not_shown_as_running(left: Left) -> None:
    status = handle(left).status()
    assert status.state == "taken down"
    assert {node.state for node in status.nodes} == {"gone"}
    assert not any(node.ranks for node in status.nodes)
    assert not (status.leader or status.warnings or status.upload)
    assert "its checkpoints stay" in status.reason and "from step 258" in status.reason


@pytest.mark.parametrize("state", ["succeeded", "failed", "stopped", "timed out"])
def test_a_job_that_had_ended_keeps_its_state(left: Left, state: str) -> None:
    stored = replace(STATUS, name=NAME, state=state, reason="as it was")
    left.objects.put(STATUS_JSON, msgspec.json.encode(stored))
    status = handle(left).status()
    assert (status.state, status.reason) == (state, "as it was")
    assert {node.state for node in status.nodes} == {"gone"}


def test_the_newest_step_is_the_one_that_is_committed(left: Left, tmp_path: Path) -> None:
    commit(tmp_path, 1, 500)  # of a round that a later one went back from
    commit(tmp_path, 2, 258)
    commit(tmp_path, 2, 345)
    its = handle(left)
    status, report = its.status(), its.report()
    assert (status.committed, status.step, report.job.final_step) == (345, 345, 345)
    assert "from step 345" in status.reason


def test_report_and_cost_have_one_closed_bill(left: Left) -> None:
    its = handle(left)
    report, cost = its.report(), its.cost()
    assert report.job.state == "taken down"
    assert cost.total_usd == pytest.approx(0.35) == report.total_usd
    assert cost.total_usd_per_hour == report.total_usd_per_hour == 0.0
    assert cost.usd_per_hour == report.usd_per_hour == report.control_usd_per_hour == 0.0
    assert (report.cost_usd, report.control_usd) == (cost.cost_usd, cost.control_usd)
    assert report.on_demand_usd == cost.on_demand_usd
    assert report.node_hours == cost.node_hours == pytest.approx(1.0)
    assert report.interruptions == REPORT.interruptions


def test_a_cluster_that_exists_is_shown_as_it_tells(left: Left) -> None:
    left.there = True
    its, stored = handle(left), left.objects.status()
    assert its.status() == stored
    assert its.report().total_usd_per_hour == its.cost().total_usd_per_hour == 0.35


def test_its_cloud_is_asked_only_where_the_cluster_may_be_gone(left: Left) -> None:
    def told(at: float) -> Status:
        status = replace(STATUS, name=NAME, state="running", at=at)
        left.objects.put(STATUS_JSON, msgspec.json.encode(status))
        return status

    its = handle(left)
    assert its.status().state == "taken down" == its.status().state and left.asked == 1
    up_again = told(wall())
    assert its.status() == up_again and left.asked == 1
    left.objects.put(STOPPING, b"")
    left.there = True
    assert its.status() == up_again and left.asked == 2  # it is being taken down
    left.there = False
    assert its.status().state == "taken down"
