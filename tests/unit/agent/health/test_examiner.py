"""The looks at a node's GPUs as its agent has them made: real programs, and a pipe as the log."""

import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.processes.nvidia_smi import FakeSmi
from support.processes.patience import PATIENT

from spotelastic.agent.config import AgentConfig, HealthChecks
from spotelastic.agent.health.examiner import GpuExaminer
from spotelastic.agent.state.events import (
    GpusChecked,
    GpusExamined,
    GpusMeasured,
    LocalEvent,
    XidSeen,
)
from spotelastic.model.progress import GpuUse

CHECKED = """#!/bin/sh
echo '{"devices": 2, "cuda": true}'
echo '{"device": "cuda:0", "wrong": "", "address": "0000:1b:00"}'
echo '{"device": "cuda:1", "wrong": "", "address": "0000:1c:00"}'
"""


class Machine:
    """A machine with two GPUs, as far as programs and files tell."""

    def __init__(self, folder: Path) -> None:
        self.smi, self.kernel = FakeSmi(folder / "bin"), folder / "kmsg"
        os.mkfifo(self.kernel)
        self.python = folder / "python"
        self.python.write_text(CHECKED)
        self.python.chmod(0o755)
        self.posted: queue.Queue[LocalEvent] = queue.Queue()
        self.checks = HealthChecks(gpus=True, promised=2, kernel_log=self.kernel)

    @contextmanager
    def examiner(self) -> Iterator[GpuExaminer]:
        config = SimpleNamespace(
            env=self.smi.environ, python=str(self.python), health=self.checks
        )  # what an examiner asks of it
        examiner = GpuExaminer(cast(AgentConfig, config), self.posted.put, {}, measure_every=0.05)
        try:
            yield examiner
        finally:
            examiner.close()

    def told(self) -> Any:
        return self.posted.get(timeout=PATIENT)

    def says(self, xid: int, gpu: str = "0000:1b:00") -> None:
        self.kernel.write_text(f"3,1,2,-;NVRM: Xid (PCI:{gpu}): {xid}, pid=1\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_sound_machine_joins_and_is_examined_after_a_failure(machine: Machine) -> None:
    with machine.examiner() as examiner:
        examiner.check()
        assert machine.told() == GpusChecked(2, None)
        examiner.examine()
        assert machine.told() == GpusExamined(None)
        machine.smi.answers("0, 00000000:1B:00.0, 0, No, No")
        examiner.examine()
        fault = machine.told().fault
        assert fault.line == "GPU 1: nvidia-smi sees 1 of 2 GPUs"


def test_the_kernel_is_heard_from_the_check_on_about_the_workers_gpus(machine: Machine) -> None:
    with machine.examiner() as examiner:
        examiner.check()
        assert isinstance(machine.told(), GpusChecked)
        machine.says(79, gpu="0000:9a:00")  # of which another program makes use
        machine.says(31)
        machine.says(94)
        machine.kernel.write_text(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
        )
        told = [machine.told() for _ in range(3)]
    assert all(isinstance(event, XidSeen) for event in told)
    assert [(event.fault.xid, event.verdict) for event in told] == [
        (31, "script"),
        (94, "sick"),
        (20034, "sick"),
    ]


def test_an_instance_that_lacks_a_gpu_does_not_join(machine: Machine) -> None:
    machine.checks = replace(machine.checks, promised=8)
    with machine.examiner() as examiner:
        examiner.check()
        fault = machine.told().fault
    assert fault.line == "torch sees 2 of 8 GPUs that this machine should have"


def test_where_nothing_is_to_be_checked_the_node_joins_at_once(machine: Machine) -> None:
    machine.checks = HealthChecks(network=True)
    with machine.examiner() as examiner:
        examiner.check()
        assert machine.told() == GpusChecked(0, None)


def test_how_busy_the_gpus_are_is_told_when_it_changes(machine: Machine) -> None:
    half = "1, 00000000:1C:00.0, 50, 1024, 81920"
    machine.smi.is_used("0, 00000000:1B:00.0, 100, 1024, 81920", half)
    with machine.examiner() as examiner:
        examiner.check()
        assert isinstance(machine.told(), GpusChecked)
        both = GpuUse(2, 0.75, 2048 << 20, 163840 << 20)
        assert machine.told() == GpusMeasured(both)
        machine.smi.is_used(half, "2, 00000000:9A:00.0, 100, 81920, 81920")  # another program's
        assert machine.told() == GpusMeasured(GpuUse(1, 0.5, 1024 << 20, 81920 << 20))
        machine.smi.is_used("No devices were found")
        assert machine.told() == GpusMeasured(None)
