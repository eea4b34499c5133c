"""The job of `make demo` on nodes that no AWS has: plain processes, under the product's controller.

What the port of `spotelastic/cloud/` promises is thus enough to buy, replace and lose nodes.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.clusters.process_cloud import ProcessCloud, agents
from support.processes.patience import PATIENT, eventually
from support.store.etcd_members import EtcdCluster

from spotelastic.clock import unbroken
from spotelastic.cloud.bucket import JOB
from spotelastic.controller.loop.controller_loop import Controller
from spotelastic.controller.model.config import ControllerConfig, LoopPace
from spotelastic.model.job import Capacity, JobSpec, Settings
from spotelastic.model.progress import Status
from spotelastic.model.requests.command import Command

pytestmark = pytest.mark.soak

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 200


@contextmanager
def controlled(spec: JobSpec, its: ProcessCloud) -> Iterator[None]:
    """The product's controller, on a thread of this process."""
    its.objects.put(JOB, msgspec.json.encode(spec))
    config = ControllerConfig(spec, "i-control", "127.0.0.1", pace=LoopPace(long_poll=1))
    controller = Controller(config, its.cloud)
    thread = threading.Thread(target=controller.run, name="controller")
    thread.start()
    try:
        yield
    finally:
        controller.stop()
        thread.join(PATIENT)
        assert not thread.is_alive()


def told(its: ProcessCloud, met: Callable[[Status], object], what: str) -> Status:
    """The first published status of which that is so."""
    found: list[Status] = []

    def look() -> bool:
        status = its.objects.status()
        if status is not None and met(status):
            found.append(status)
        return bool(found)

    eventually(look, what)
    return found[0]


def training(status: Status) -> set[str]:
    return {node.id for node in status.nodes if node.state == "training"}


def running(its: ProcessCloud) -> set[str]:
    return {each.id for each in its.capacity.instances() if each.state == "running"}


@pytest.mark.timeout(600)
def test_the_demo_job_goes_on_when_a_node_is_warned_and_another_is_lost(
    etcd_cluster: EtcdCluster, tmp_path: Path
) -> None:
    spec = JobSpec(
        cluster="demo",
        run="demo",
        script="train_gpt.py",
        args=("--steps", str(STEPS)),
        code="",
        settings=Settings(2, 3, workers=1),
        storage=str(tmp_path / "checkpoints"),
        etcd=tuple(etcd_cluster.endpoints),
        etcd_members=tuple(etcd_cluster.members),
        worker_group="workers",
        instance_types=("process",),
        created_at=unbroken(),
        capacity=Capacity(zones="spread"),
        linger=None,
        folder=str(EXAMPLES),
    )
    with ProcessCloud(agents(lambda: its)) as its, controlled(spec, its):
        status = told(its, lambda status: status.step >= 10, "ten steps")
        first = sorted(node.id for node in status.nodes if node.role == "worker")
        warned, lost = first[:2]
        its.warn(warned)
        # The warned node has left the round, but serves its slots until its machine is taken.
        told(its, lambda status: len(training(status) - {warned}) == 3, "its replacement")
        its.capacity.lose(lost)
        status = told(its, lambda status: status.state == "succeeded", "success")
        assert status.step == STEPS
        eventually(its.objects.report, "a report")
        report = its.objects.report()
        assert report is not None
        rows = {row.node: row.kind for row in report.interruptions}
        assert rows == {warned: "spot_interruption", lost: "loss"}
        assert {row.node: row.steps_lost for row in report.interruptions}[warned] == 0
        eventually(lambda: not running(its), "the end of all nodes")
        its.send(Command("c1", "restart"))
        eventually(lambda: its.objects.answer_to("c1"), "an answer")
