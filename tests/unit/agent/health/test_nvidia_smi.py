"""What nvidia-smi answers, or does not, from a program in its place."""

import os
from pathlib import Path

import pytest
from support.processes.nvidia_smi import FakeSmi

from spotelastic.agent.health.nvidia_smi import (
    FIELDS,
    USE_FIELDS,
    SmiAnswer,
    ask,
    judge,
    parse,
    use,
)
from spotelastic.model.gpu import GpuReading
from spotelastic.model.progress import GpuUse

FIRST = GpuReading("0", "00000000:1B:00.0", 0, False, False)
SECOND = GpuReading("1", "00000000:1C:00.0", 0, False, False)


@pytest.fixture
def smi(tmp_path: Path) -> FakeSmi:
    return FakeSmi(tmp_path / "bin")


def test_all_gpus_are_read(smi: FakeSmi) -> None:
    answer = ask(smi.environ)
    assert answer == SmiAnswer((FIRST, SECOND))
    assert judge(answer.readings, answer) is None


def test_an_older_driver_is_asked_for_what_it_knows(smi: FakeSmi) -> None:
    smi.knows_no(*FIELDS[3:])
    smi.answers("0, 00000000:1B:00.0, 2")
    assert ask(smi.environ).readings == (GpuReading("0", "00000000:1B:00.0", 2),)
    smi.knows_no(*FIELDS[2:])
    smi.answers("0, 00000000:1B:00.0")
    assert ask(smi.environ).readings == (GpuReading("0", "00000000:1B:00.0"),)


def test_a_gpu_that_does_not_tell_is_no_fault(smi: FakeSmi) -> None:
    smi.answers("0, 00000000:1B:00.0, [N/A], [N/A], [Not Supported]")
    answer = ask(smi.environ)
    assert answer.readings == (GpuReading("0", "00000000:1B:00.0"),)
    assert judge(answer.readings, answer) is None


@pytest.mark.parametrize(
    ("lines", "line", "cause"),
    [
        (
            ["0, 00000000:1B:00.0, 3, No, No", "1, 00000000:1C:00.0, 0, No, No"],
            "GPU 0: 3 uncorrected memory errors since the node joined", "uncorrected errors",
        ),
        (
            ["0, 00000000:1B:00.0, 0, No, No", "1, 00000000:1C:00.0, 0, Yes, No"],
            "GPU 1: a part of its memory waits for a reset to be replaced", "repair pending",
        ),
        (
            ["0, 00000000:1B:00.0, 0, No, No", "1, 00000000:1C:00.0, 0, 1, 1"],
            "GPU 1: its memory cannot be repaired", "repair failed",
        ),
        (
            ["0, 00000000:1B:00.0, 0, No, No"],
            "GPU 1: nvidia-smi sees 1 of 2 GPUs", "gpus missing",
        ),
    ],
)  # fmt: skip
def test_what_has_become_worse_is_a_fault(
    smi: FakeSmi, lines: list[str], line: str, cause: str
) -> None:
    before = ask(smi.environ).readings
    smi.answers(*lines)
    fault = judge(before, ask(smi.environ))
    assert fault is not None
    assert (fault.line, fault.cause) == (line, cause)
    assert judge(ask(smi.environ).readings, ask(smi.environ)) is None, "it was so before"


def test_an_answer_in_vain_is_a_fault_where_there_was_one(smi: FakeSmi) -> None:
    before = ask(smi.environ).readings
    said = "Unable to determine the device handle for GPU1: 0000:1C:00.0: GPU is lost"
    smi.answers(said, code=15)
    fault = judge(before, ask(smi.environ))
    assert fault is not None
    assert fault.line == f"GPU 0, 1: nvidia-smi sees 0 of 2 GPUs: nvidia-smi: {said}"
    assert judge((), ask(smi.environ)) is None, "nothing was known of it"


def test_one_that_hangs_is_given_up_and_counts_as_sick(smi: FakeSmi) -> None:
    before = ask(smi.environ).readings
    smi.hangs()
    answer = ask(smi.environ, within=0.2)
    assert answer.hung
    fault = judge(before, answer)
    assert fault is not None
    assert fault.line == "nvidia-smi has not answered within 0.2 s"


def test_a_machine_without_it_is_not_judged(tmp_path: Path) -> None:
    answer = ask({**os.environ, "PATH": str(tmp_path)})
    assert not answer.is_there
    assert judge((FIRST,), answer) is None


def test_what_is_no_reading_is_left_out() -> None:
    assert parse("No devices were found\n") == ()
    assert parse("0, a\n1, b, 0, No, No\n,,,,\n") == (GpuReading("1", "b", 0, False, False),)


def test_how_busy_gpus_are_is_told_of_those_of_the_workers_alone(smi: FakeSmi) -> None:
    smi.is_used("0, 00000000:1B:00.0, 90, 1024, 81920", "1, 00000000:1C:00.0, 50, 3072, 81920")
    answer = ask(smi.environ, asked=USE_FIELDS)
    assert use(answer, ()) == GpuUse(2, 0.7, 4096 << 20, 163840 << 20)
    assert use(answer, {"0000:1c:00"}) == GpuUse(1, 0.5, 3072 << 20, 81920 << 20)
    assert use(answer, {"0000:9a:00"}) is None


@pytest.mark.parametrize(
    "line",
    [
        "0, 00000000:1B:00.0, [N/A], 1024, 81920",  # cut into instances
        "0, 00000000:1B:00.0, 90, [Not Supported], [Not Supported]",
        "No devices were found",
        "",
    ],
)
def test_a_gpu_that_does_not_tell_how_busy_it_is_counts_for_nothing(
    smi: FakeSmi, line: str
) -> None:
    smi.is_used(line)
    assert use(ask(smi.environ, asked=USE_FIELDS), ()) is None
    smi.is_used(line, "1, 00000000:1C:00.0, 50, 3072, 81920")
    assert use(ask(smi.environ, asked=USE_FIELDS), ()) == GpuUse(1, 0.5, 3072 << 20, 81920 << 20)


def test_a_driver_that_cannot_be_asked_how_busy_it_is_is_not_sick(smi: FakeSmi) -> None:
    smi.knows_no(*USE_FIELDS[2:])
    answer = ask(smi.environ, asked=USE_FIELDS)
    assert use(answer, ()) is None
