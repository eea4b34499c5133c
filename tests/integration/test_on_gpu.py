"""What only a GPU can show: copies from it into slots, and what its driver refuses."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from spotelastic_checkpoints.types import Commit, Resume, Schedule
from support.processes.patience import PATIENT
from support.saving.daemons_and_workers import cluster, under_agent
from support.training import large_model
from support.training.open_checkpointer import client_of, parts_of

import spotelastic as se
from spotelastic.training.save.overlap import FromDevice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
TESTS = Path(__file__).parent.parent
LARGE = 100 << 20
"""Elements: slots of 400 MiB."""


def state(value: float) -> dict[str, Any]:
    """Tensors of odd sizes, so that they lie across every boundary that there may be."""
    sizes = (LARGE, 1, 8191, 3)
    return {f"w{n}": torch.full((size,), value + n, device="cuda") for n, size in enumerate(sizes)}


def test_what_a_gpu_computed_last_is_what_is_saved_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        saved = state(0.0)
        with (
            under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 1)),
            se.Checkpointer(saved) as checkpoint,
        ):
            for step in range(1, 5):  # the first ones while slots are still being locked
                for tensor in saved.values():
                    tensor.add_(1.0)
                checkpoint.step(step)
            assert checkpoint.save() and checkpoint.wait()
        expected = {name: tensor.clone() for name, tensor in saved.items()}
        restored = state(-1.0)
        newest = node.agent.status().commit
        assert newest == Commit(1, 4)
        resume = Resume("store", 4, epoch=1)
        with (
            under_agent(node, "r2", resume, monkeypatch),
            se.Checkpointer(restored) as checkpoint,
        ):
            assert checkpoint.restore() == 4
        assert all(torch.equal(restored[name], expected[name]) for name in expected)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def test_what_is_copied_beside_training_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        saved = large_model.make(adamw, "cuda")
        expected = {}
        with (
            under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 1)),
            se.Checkpointer(saved) as checkpoint,
        ):
            checkpoint.restore()
            for step in range(1, 21):  # the host is ahead of the device, and does not wait
                large_model.one_step(saved, step)
                checkpoint.step(step)
                expected = large_model.tensors(saved)
                if step == 20:
                    [part] = parts_of(checkpoint)
                    assert isinstance(part, FromDevice)
                    large_model.one_step(saved, 21)
            assert checkpoint.wait(PATIENT)
        restored = large_model.make(adamw, "cuda")
        with (
            under_agent(node, "r2", Resume("store", 20, epoch=1), monkeypatch),
            se.Checkpointer(restored) as checkpoint,
        ):
            assert checkpoint.restore() == 20
        assert large_model.are_equal(large_model.tensors(restored), expected)


def test_where_memory_may_not_be_locked_saves_are_slower_and_as_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, before[1]))
    try:
        with cluster(tmp_path) as [node]:
            saved = state(1.0)
            with (
                under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 1)),
                se.Checkpointer(saved) as checkpoint,
            ):
                checkpoint.step(1)
                assert client_of(checkpoint).ready.wait(PATIENT)
                for tensor in saved.values():
                    tensor.mul_(2.0)  # the next kernel of this thread
                torch.cuda.synchronize()
                checkpoint.step(2)
                assert checkpoint.save() and checkpoint.wait()
            assert node.agent.status().commit == Commit(1, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


# -- in-place recovery ----------------------------------------------------------------------------

GROWTH = 64 << 20
"""Bytes of the GPU that rounds may take beside what the first ones take."""


def told_in(folder: Path, backend: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Return the rounds of the job that leaves steps, what it told, and what one told that does
    not.
    """
    names = [f"gpu-{backend}", f"gpu-{backend}-alone"]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.in_place.resting_cases", folder, *names],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )
    left, alone = (json.loads((folder / f"{name}.json").read_text()) for name in names)
    return left["rounds"], left["told"], alone["told"]


@pytest.mark.parametrize(
    "backend",
    [
        "gloo",
        pytest.param(
            "nccl",
            marks=pytest.mark.skipif(
                not torch.distributed.is_nccl_available(), reason="needs a torch with NCCL"
            ),
        ),
    ],
)
def test_a_step_that_was_left_on_a_gpu_is_the_same_when_it_comes_again(
    tmp_path: Path, backend: str
) -> None:
    """The GPU's random numbers, the scaler and BatchNorm are put back; communicators are aborted
    and made again, with work of theirs still waiting on the GPU. Their memory is given back.
    """
    rounds, left, alone = told_in(tmp_path, backend)
    assert rounds > 3
    for number, told in left.items():
        finished = [each for each in told if isinstance(each, list)]
        assert [each[:3] for each in finished] == [each[:3] for each in alone[number]]
        memory = [each[3] for each in finished]
        assert memory[-1] - memory[3] <= GROWTH
