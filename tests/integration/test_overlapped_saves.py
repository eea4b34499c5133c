"""Saves that go on while training does: each is exactly its step's."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from spotelastic_checkpoints.types import Resume, Schedule
from support.processes.patience import PATIENT
from support.processes.warm_python import WarmPython
from support.saving.daemons_and_workers import cluster, under_agent
from support.store.etcd_members import wait_until
from support.training import large_model
from support.training.open_checkpointer import copying_of, slots_are_waited_for
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

import spotelastic as se
from spotelastic.training.save.overlap import Copying

TESTS = Path(__file__).parent.parent
OPTIMIZERS = {
    "momentum": large_model.momentum,
    "foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, amsgrad=True, foreach=False),
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTELASTIC_KEEP_LAST", "100")
    slots_are_waited_for(monkeypatch)


def committed(storage: Path, step: int, like: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What stock DCP reads of that step, into a state like this one."""
    model, optimizer = like["model"], like["optimizer"]
    target = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(target, checkpoint_id=storage / "1" / f"step-{step:08d}", no_dist=True)
    return large_model.tensors(like)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_is_committed_is_the_state_of_its_step_while_training_has_gone_on(
    tmp_path: Path, kind: str
) -> None:
    state = large_model.make(OPTIMIZERS[kind])
    expected, overlapped = {}, 0
    with se.Checkpointer(
        state, storage=str(tmp_path), snapshot_every=2, checkpoint_every=2
    ) as checkpoint:
        for step in range(1, 11):
            loss = large_model.one_step(state, step)
            checkpoint.step(step, loss=loss)
            if step % 2 == 0:
                expected[step] = large_model.tensors(state)
                overlapped += copying_of(checkpoint) is not None
                continue
            assert checkpoint.wait(PATIENT)  # so that each is sent
    assert overlapped == len(expected)
    like = large_model.make(OPTIMIZERS[kind])
    large_model.one_step(like, 1)
    for step, tensors in expected.items():
        assert large_model.are_equal(committed(tmp_path, step, like), tensors), step


def test_a_compiled_step_waits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = large_model.make()
    large_model.one_step(state, 0)
    compiled = torch.compile(state["optimizer"].step, backend="eager")
    expected, asked = {}, []
    guard = Copying.guard

    def guarded(copying: Copying) -> None:
        asked.append(large_model.tensors(state))
        guard(copying)

    monkeypatch.setattr(Copying, "guard", guarded)
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in range(1, 6):
            state["model"](torch.rand(4, large_model.WIDTH)).square().mean().backward()
            compiled()
            state["optimizer"].zero_grad()
            checkpoint.step(step)
            assert copying_of(checkpoint) is not None
            expected[step] = large_model.tensors(state)
    # Before each step but the first: what the step before had left.
    weights = [name for name in expected[1] if "weight" in name or "momentum" in name]
    assert len(asked) == 4
    for step, found in enumerate(asked, 1):
        assert all(torch.equal(found[name], expected[step][name]) for name in weights)
    assert large_model.are_equal(committed(tmp_path, 5, state), expected[5])


def test_a_script_that_writes_to_parameters_itself_is_told_and_its_saves_wait_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    state = large_model.make()
    expected = {}
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in range(1, 5):
            large_model.one_step(state, step)
            with large_model.held(monkeypatch):
                checkpoint.step(step)
                expected[step] = large_model.tensors(state)
                for parameter in state["model"].parameters():
                    parameter.data.mul_(0.9)
            assert checkpoint.wait(PATIENT)
    assert "from now on training waits for each copy" in capfd.readouterr().err
    folders = {path.parent.name for path in tmp_path.glob("*/step-*/.metadata")}
    # The last one is saved once more at the end; it has been committed, as it was then.
    assert folders == {f"step-{step:08d}" for step in (2, 3, 4)}
    for step in (2, 3, 4):
        assert large_model.are_equal(committed(tmp_path, step, state), expected[step])


def test_a_save_that_fails_is_told_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the last step is committed, although it was the one that failed."""
    state = large_model.make()
    with se.Checkpointer(
        state, storage=str(tmp_path), snapshot_every=2, checkpoint_every=2
    ) as checkpoint:
        for step in range(1, 3):
            large_model.one_step(state, step)
            with large_model.held(monkeypatch):
                checkpoint.step(step)
                state["model"][0].weight.data.mul_(0.9)
        copying = copying_of(checkpoint)
        assert copying is not None
        copying.settle()
        checkpoint.step(2)
        told: list[str] = []

        def is_told() -> bool:  # by another thread
            told.append(capfd.readouterr().err)
            return "is not what the state was at that step" in "".join(told)

        wait_until(is_told, "why the save was dropped")
        assert "something" not in "".join(told)
        expected = large_model.tensors(state)
    assert large_model.are_equal(committed(tmp_path, 2, state), expected)


def test_two_saves_without_a_step_between_are_both_kept(tmp_path: Path) -> None:
    """As when a gradient scaler leaves steps out."""
    state = large_model.make()
    large_model.one_step(state, 1)
    with se.Checkpointer(state, storage=str(tmp_path), checkpoint_every=1) as checkpoint:
        for step in (1, 2, 3):
            checkpoint.step(step)
            assert checkpoint.save() and checkpoint.wait(PATIENT)
        expected = large_model.tensors(state)
    for step in (1, 2, 3):
        assert large_model.are_equal(committed(tmp_path, step, state), expected)


def test_a_script_may_wait_for_its_copies(tmp_path: Path) -> None:
    state = large_model.make()
    with se.Checkpointer(
        state, storage=str(tmp_path), checkpoint_every=1, overlap=False
    ) as checkpoint:
        for step in (1, 2):
            large_model.one_step(state, step)
            checkpoint.step(step)
            assert copying_of(checkpoint) is None
        expected = large_model.tensors(state)
    assert large_model.are_equal(committed(tmp_path, 2, state), expected)


def test_a_script_that_fails_leaves_its_last_save_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        state = large_model.make()
        with under_agent(node, "r1", Resume(), monkeypatch, Schedule(1, 0)):
            with pytest.raises(KeyError), se.Checkpointer(state) as checkpoint:
                checkpoint.restore()
                for step in (1, 2, 3):
                    large_model.one_step(state, step)
                    checkpoint.step(step)
                assert copying_of(checkpoint) is not None
                raise KeyError("the script's own")
            status = node.agent.status()
            assert [snapshot.step for snapshot in status.snapshots][-1] == 3
            assert status.workers[0].stall > 0
        resume = Resume("memory", 3, "r1", status.snapshots[-1].layout)
        expected, state = large_model.tensors(state), large_model.make()
        with (
            under_agent(node, "r2", resume, monkeypatch),
            se.Checkpointer(state) as checkpoint,
        ):
            assert checkpoint.restore() == 3
            assert large_model.are_equal(large_model.tensors(state), expected)


@pytest.mark.soak
def test_sharded_states_are_copied_beside_training_too(
    tmp_path: Path, warm_torch: WarmPython
) -> None:
    environ = os.environ | {"SPOTELASTIC_KEEP_LAST": "100"}
    words = ("-W", "ignore", "-m", "support.scripts.train_sharded", tmp_path)
    warm_torch.run(*words, environ=environ, check=True)
