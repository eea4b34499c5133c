"""Nodes whose GPUs fall ill, on a local cloud and on own machines.

The kernel's log is a pipe, and nvidia-smi a program of the test's; all else is real.
"""

import os
import uuid
from pathlib import Path

import pytest
from support.clusters.running_job import SAVES, finishes, is_whole, machines, running_job
from support.processes.nvidia_smi import FakeSmi
from support.processes.run_launcher import running

from spotelastic.agent.health.kernel_log import VARIABLE
from spotelastic.agent.shutdown import STUCK
from spotelastic.model.job import Settings
from spotelastic.store.etcd_server.process import standalone

pytestmark = pytest.mark.faults

LOST = "3,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
NONE_CHARGED = ("--max-restarts", "0")
DAMAGED = "0, 00000000:1B:00.0, 7, No, No"


@pytest.mark.soak
def test_a_node_ends_with_a_line_and_a_code_that_say_that_it_is_sick(tmp_path: Path) -> None:
    """Nobody replaces a machine of one's own."""
    log, name = tmp_path / "kmsg", uuid.uuid4().hex
    os.mkfifo(log)
    with (
        standalone(tmp_path / "etcd") as etcd,
        running(etcd.endpoint, name, tmp_path, nnodes="1:2", flags=NONE_CHARGED) as run,
    ):
        node = run.add("a", env={VARIABLE: str(log)})
        run.trains("a")
        log.write_text(LOST)
        assert node.wait() == STUCK
    assert "GPU 0000:1b:00: Xid 79, the GPU has fallen off the bus. This node leaves" in node.output


@pytest.mark.soak
def test_a_node_with_a_sick_gpu_is_replaced_and_nothing_is_charged(tmp_path: Path) -> None:
    """Of two nodes the one that happens to read the kernel's message is the sick one."""
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    smi = FakeSmi(tmp_path / "bin")
    settings = Settings(1, 2, workers=1, max_restarts=0, **SAVES)
    env = {VARIABLE: str(log), "PATH": smi.environ["PATH"]}
    with running_job(tmp_path, settings=settings, more=env) as trial:
        before = is_whole(trial)
        log.write_text(LOST)
        sick = trial.event("unhealthy").node
        after = is_whole(trial, without={sick})
        assert any("Xid 79, the GPU has fallen off the bus" in line for line in after.warnings)
        assert after.step > before.step
        report = finishes(trial, tmp_path)
        assert len(machines(trial)) == 3, "one was replaced"
    (row,) = (row for row in report.interruptions if row.node == sick)
    assert (row.kind, row.told_by) == ("unhealthy", "kernel")


@pytest.mark.soak
def test_on_own_machines_a_sick_node_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    """First by the kernel's word, then by nvidia-smi's after a failure, which is not charged."""
    name = uuid.uuid4().hex
    with (
        standalone(tmp_path / "etcd") as etcd,
        running(etcd.endpoint, name, tmp_path, nnodes="1:3", flags=NONE_CHARGED) as run,
    ):
        smi, log, other = FakeSmi(tmp_path / "bin"), tmp_path / "kmsg", tmp_path / "other"
        os.mkfifo(log)
        os.mkfifo(other)
        stays = run.add("a")
        sick = run.add("b", env={**smi.environ, VARIABLE: str(log)})
        damaged = run.add("c", env={**smi.environ, VARIABLE: str(other)})
        run.trains("a", "b", "c", beyond=5)
        log.write_text(LOST)
        assert sick.wait() == STUCK
        assert "GPU 0000:1b:00: Xid 79, the GPU has fallen off the bus. This node leaves" in (
            sick.output
        )
        run.trains("a", "c")

        smi.answers(DAMAGED, "1, 00000000:1C:00.0, 0, No, No")
        os.kill(damaged.workers()[0], 9)
        assert damaged.wait() == STUCK
        assert "GPU 0: 7 uncorrected memory errors since the node joined" in damaged.output
        alone = run.trains("a")
        assert alone.charged == ()
        assert stays.process.poll() is None


@pytest.mark.soak
def test_instances_that_are_all_sick_from_the_start_end_the_job_with_the_cause(
    tmp_path: Path,
) -> None:
    smi = FakeSmi(tmp_path / "bin")
    smi.hangs()
    env = {VARIABLE: str(tmp_path / "none"), "PATH": smi.environ["PATH"]}
    with running_job(tmp_path, settings=Settings(1, 1, workers=1, **SAVES), more=env) as trial:
        ended = trial.status(lambda status: status.state == "failed", "the end of the job")
        # Which limit is met first depends on how soon it is seen that the last one has ended.
        limits = ("3 instances in a row did not boot", "4 nodes fell ill within an hour")
        assert any(limit in ended.reason for limit in limits)
        assert "nvidia-smi has not answered within 10 s" in ended.reason
        told = [e for e in trial.cluster.objects.events() if e.kind == "unhealthy"]
        assert len(told) == len({event.node for event in told})
        assert 3 <= len(told) <= 4
        assert len(machines(trial)) <= 5, "the last one was launched before that was known"
