"""A node whose processes stand still half of the time: it is named, and replaced where wanted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clusters.process_cloud import ProcessCloud, agents
from support.processes.patience import eventually
from test_process_cloud import controlled, told, training

from spotelastic.clock import unbroken
from spotelastic.model.job import Capacity, JobSpec, Settings
from spotelastic.model.progress import Event
from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

SUPPORT = Path(__file__).parents[1] / "support/scripts"
STEPS = 100_000
STEP_TIME = 0.02


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@contextmanager
def trains(etcd: EtcdMember, folder: Path, settings: Settings) -> Iterator[ProcessCloud]:
    """Three nodes that train with gloo, under a controller."""
    spec = JobSpec(
        cluster="demo",
        run="demo",
        script="train_small.py",
        args=(str(STEPS), str(STEP_TIME)),
        code="",
        settings=settings,
        storage=str(folder / "checkpoints"),
        etcd=(etcd.endpoint,),
        etcd_members=("a",),
        worker_group="workers",
        instance_types=("process",),
        created_at=unbroken(),
        capacity=Capacity(zones="spread"),
        linger=None,
        folder=str(SUPPORT),
    )
    with ProcessCloud(agents(lambda: its)) as its, controlled(spec, its):
        told(its, lambda status: len(training(status)) == 3 and status.step > 10, "training")
        yield its


def events(its: ProcessCloud, kind: str) -> list[Event]:
    return [event for event in its.objects.events() if event.kind == kind]


def test_a_throttled_node_is_named_until_it_keeps_up_again(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    with trains(etcd, tmp_path, Settings(2, 3, slow_after=12.0, lease=6.0)) as its:
        slow = sorted(training(told(its, lambda status: bool(training(status)), "nodes")))[1]
        with its.throttled(slow):
            status = told(its, lambda status: bool(status.slow), "a slow node")
            assert [each.node for each in status.slow] == [slow]
            assert status.slow[0].factor > 1.25 and 0.0 < status.slow[0].speed < 1.0
        status = told(its, lambda status: not status.slow, "a node that keeps up again")
        assert len(training(status)) == 3, "it was not replaced"
        eventually(lambda: events(its, "slow-over"), "its event")
        assert [event.node for event in events(its, "slow")] == [slow]


def test_a_throttled_node_is_replaced_where_that_is_wanted(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    settings = Settings(2, 3, slow_after=12.0, lease=6.0, replace_slow=True)
    with trains(etcd, tmp_path, settings) as its:
        slow = sorted(training(told(its, lambda status: bool(training(status)), "nodes")))[1]
        with its.throttled(slow):
            told(its, lambda status: bool(status.slow), "a slow node")
            status = told(its, lambda status: len(training(status) - {slow}) == 3, "another node")
        assert slow not in training(status)
        assert [event.node for event in events(its, "replace")] == [slow]
        eventually(lambda: events(its, "slow-over"), "the end of its slowness")
