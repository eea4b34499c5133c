"""A job with two regions, in one of which its cluster is asleep, from `up` until nothing is left.

The control nodes act with their own rights, which the local cloud enforces.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.clusters.running_job import STEP_TIME, TYPE
from support.clusters.trial_cluster import NAME, eventually, nothing_is_left
from support.places import TESTS
from support.training import exactly

from spotelastic import JobConfig
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling
from spotelastic.client import api
from spotelastic.client.cluster import Cluster
from spotelastic.client.progress import training
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.find import account
from spotelastic.cloud.model import ALIVE
from spotelastic.local import cloud, joining
from spotelastic.local.fault_client import FaultClient
from spotelastic.model.progress import Status

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

EAST, WEST = "us-east-1", "us-west-2"
SAVES: Mapping[str, Any] = {"snapshot_every": 5, "checkpoint_every": 20}
SCRIPT = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a script, beside a local cloud that stays when it has no cluster."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(work)
    monkeypatch.setenv("SPOTELASTIC_HOME", str(tmp_path / "home"))
    info = cloud.start(detach=False)
    try:
        for name, value in cloud.environment(info).items():
            monkeypatch.setenv(name, value)
        use = joining.enter()
        assert use is not None
        with closing(use):
            yield work
    finally:
        cloud.stop(info)


def up(folder: Path, **given: Any) -> Cluster:
    """Returns when the job trains."""
    usual = {"args": (str(folder / "stop"),), "region_patience": "20m"}
    config = JobConfig(
        "train.py",
        name=NAME,
        local=True,
        keep=True,
        regions=(EAST, WEST),
        instance_types=TYPE,
        **usual | given,
    )
    return api.up(config, yes=True, on_update=print)


def target(region: str) -> CloudTarget:
    return account(True, region, print)


def sleeps(region: str) -> None:
    """The cluster is there, and has never had an instance."""
    [summary] = target(region).listing()
    assert (summary.name, summary.state) == (NAME, "asleep")
    assert autoscaling.instances(target(region).aws, NAME) == ()


def test_a_job_is_brought_up_changed_and_taken_down_in_both_regions(folder: Path) -> None:
    cluster = up(folder)
    assert cluster.record.aws.region == EAST  # type: ignore[attr-defined]
    sleeps(WEST)
    assert api.find(NAME, local=True, region=WEST).status().state == "running"
    before = target(WEST).cluster(NAME).spec.code

    (folder / "train.py").write_text(f"{SCRIPT}\n# changed")
    up(folder)
    sleeps(WEST)
    assert target(WEST).cluster(NAME).spec.code != before
    alive = [each for each in autoscaling.instances(Aws(EAST), NAME) if each.state in ALIVE]
    assert {each.role for each in alive} == {"control", "worker"}

    api.find(NAME, local=True, region=WEST).down(on_update=print)
    for region in (EAST, WEST):
        nothing_is_left(Aws(region))


def test_nothing_is_left_in_either_region_when_the_job_has_ended(folder: Path) -> None:
    cluster = up(folder, linger="0")
    assert training(cluster.status())
    sleeps(WEST)
    (folder / "stop").touch()
    ends_everywhere()


def ends_everywhere() -> None:
    for region in (EAST, WEST):
        its = target(region)
        eventually(lambda at=its: at.names() == () or None, f"the end in {region}")  # type: ignore[misc]
        nothing_is_left(its.aws)


def test_a_job_that_moves_by_itself_is_followed_and_leaves_nothing_when_it_has_ended(
    folder: Path,
) -> None:
    (folder / "train.py").write_text(exactly.SCRIPT.read_text())
    cluster = up(
        folder,
        args=(str(folder), STEP_TIME),
        env={"PYTHONPATH": str(TESTS)},
        region_patience="8s",
        linger="10s",  # so that the last status is told
        **SAVES,
    )
    told: list[object] = []
    taken = False
    for update in cluster.updates():
        told.append(update)
        if isinstance(update, Status) and update.committed:
            if told_of(cluster) == WEST:
                (folder / "stop").touch()
            elif not taken:
                gives_nothing(EAST)
                taken = True
    assert f"{NAME} moves to {WEST}" in map(str, told)
    assert isinstance(told[-1], Status)
    assert told[-1].state == "succeeded"
    exactly.check(folder)
    ends_everywhere()


def told_of(cluster: Cluster) -> str:
    """The region whose status is told."""
    record = cluster.record
    assert isinstance(record, ClusterRecord)
    return record.aws.region


def gives_nothing(region: str) -> None:
    """A region's nodes are taken, and it has no others."""
    info = cloud.find()
    assert info is not None
    faults = FaultClient(info)
    for zone in "abcdef":
        faults.set_capacity(TYPE, f"{region}{zone}", 0)
    for node in autoscaling.instances(Aws(region), NAME, "worker"):
        if node.state in ALIVE:
            faults.kill(node.id)
