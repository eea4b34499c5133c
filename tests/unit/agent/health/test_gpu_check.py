"""The check of GPUs before a node joins: a process of its own, on the CPU in place of GPUs."""

import os
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from spotelastic.agent.health.gpu_check import check
from spotelastic.agent.health.gpu_work import work

HERE = sys.executable


def stand_in(folder: Path, lines: str) -> str:
    """A Python that, for the check, only does this."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{dedent(lines)}\n")
    program.chmod(0o755)
    return str(program)


def test_of_two_devices_the_one_that_fails_is_named() -> None:
    """The CPU works; what torch calls the meta device computes nothing."""
    found = check(HERE, os.environ, 0, devices=("cpu", "meta"))
    assert found.gpus == 2
    assert found.fault is not None
    assert (found.fault.cause, found.fault.gpu) == ("wrong result", "meta")


def test_a_result_that_differs_in_one_place_is_found() -> None:
    def wrong(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = one @ other
        product[17, 4] += 1
        return product

    assert work(torch.device("cpu")) == ""
    told = work(torch.device("cpu"), wrong)
    assert told == "a product of matrices is wrong in 1 of 1048576 places"


@pytest.mark.parametrize(
    ("lines", "promised", "fault", "note"),
    [
        ('echo \'{"devices": 7, "cuda": true, "why": "no driver"}\'', 8,
         "torch sees 7 of 8 GPUs that this machine should have: no driver", ""),
        ('echo \'{"devices": 0, "cuda": false}\'', 8, "",
         "GPUs are not checked: this torch was built without CUDA"),
        ("exit 1", 8, "", "GPUs are not checked: it ended at once"),
        ('echo \'{"devices": 1, "cuda": true}\'; kill -9 $$', 1, "",
         "GPUs are not checked: the check has crashed"),
        ('echo \'{"devices": 1, "cuda": true}\'\n'
         'echo \'{"device": "cuda:0", "busy": "CUDA error: out of memory"}\'', 1, "",
         "GPU 0: CUDA error: out of memory"),
        ('echo \'{"devices": 2, "cuda": true}\'\n'
         'echo "a library prints this"\necho "[3]"\n'
         'echo \'{"device": "cuda:0", "wrong": ""}\'\n'
         'echo \'{"device": "cuda:1", "wrong": "CUDA error: uncorrectable ECC error"}\'', 2,
         "GPU 1: CUDA error: uncorrectable ECC error", ""),
    ],
)  # fmt: skip
def test_what_the_process_tells_is_judged(
    tmp_path: Path, lines: str, promised: int, fault: str, note: str
) -> None:
    found = check(stand_in(tmp_path, lines), os.environ, promised)
    assert (found.fault.line if found.fault else "", found.note) == (fault, note)


def test_a_torch_that_is_never_imported_is_given_up(tmp_path: Path) -> None:
    """An import may take long on a cold disk: the node is not sick for that."""
    found = check(stand_in(tmp_path, "exec sleep 600"), os.environ, 8, import_within=0.2)
    assert found.note == "GPUs are not checked: importing torch takes too long"


def test_a_gpu_that_never_answers_is_sick(tmp_path: Path) -> None:
    # At once: the time for the next one counts from each line.
    lines = """
    printf '%s\\n' '{"devices": 2, "cuda": true}' '{"device": "cuda:0", "wrong": ""}'
    exec sleep 600
    """
    found = check(stand_in(tmp_path, lines), os.environ, 2, work_within=0.3)
    assert found.fault is not None
    assert found.fault.line == "GPU 1: no result within 0.3 s"


def test_a_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    found = check(str(tmp_path / "none"), os.environ, 1)
    assert found.note.startswith("GPUs are not checked: ")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpus_pass_within_seconds() -> None:
    found = check(HERE, os.environ, 1)
    assert found.gpus >= 1
    assert found.fault is None
    assert len(found.addresses) in (0, found.gpus)
