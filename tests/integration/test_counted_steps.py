"""Steps as scripts count them, and processes that come of the one that trains."""

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.storage.folder import FolderStorage
from support.saving.ckpt_command import ckpt
from support.training.open_checkpointer import restarted
from support.training.small_model import make, one_step, weights

import spotelastic as se
from spotelastic.errors import UsageError


def test_a_loop_that_counts_from_zero_is_told_how_to(tmp_path: Path) -> None:
    state = make()
    with (
        pytest.raises(UsageError, match=r"call checkpoint.step\(step \+ 1\)"),
        se.Checkpointer(state, storage=str(tmp_path)) as checkpoint,
    ):
        for step in range(checkpoint.restore(), 5):
            checkpoint.step(step, loss=one_step(state))


@pytest.mark.parametrize("step", [-1, 1.0, "1", None])
def test_what_is_no_number_of_steps_is_refused(tmp_path: Path, step: object) -> None:
    with se.Checkpointer({"value": 1}, storage=str(tmp_path)) as checkpoint:
        checkpoint.restore()
        with pytest.raises(UsageError, match=r"^step\("):
            checkpoint.step(step)  # type: ignore[arg-type]


def test_a_loop_that_counts_from_zero_by_the_idiom_makes_each_step_once(tmp_path: Path) -> None:
    made: list[int] = []
    for end in (1, 3):
        state = {"value": 0}
        with se.Checkpointer(state, storage=str(tmp_path)) as checkpoint:
            for step in range(checkpoint.restore(), end):
                made.append(step)
                state["value"] += 1
                checkpoint.step(step + 1)
        assert state["value"] == end
    assert made == [0, 1, 2]


def test_a_run_is_sent_back_to_step_zero_of_what_was_imported(tmp_path: Path) -> None:
    torch.save({"value": 7}, tmp_path / "start.pt")
    done = ckpt("import", tmp_path / "start.pt", tmp_path / "store")
    assert done.code == 0, done
    state = {"value": 0}
    for expected, end in ((7, 8), (8, 9)):
        with se.Checkpointer(state, storage=str(tmp_path / "store")) as checkpoint:
            restarted(checkpoint)
            step = checkpoint.restore(step=0)
            assert state["value"] == expected
            state["value"] = end
            checkpoint.step(step + 1)


def test_a_step_told_twice_is_saved_once(tmp_path: Path) -> None:
    state = {"value": 0}
    storage = str(tmp_path)
    with se.Checkpointer(state, storage=storage, snapshot_every=1, checkpoint_every=1) as saved:
        saved.restore()
        saved.step(1)
        assert saved.wait()
        state["value"] = 1
        saved.step(1)
    with se.Checkpointer(state, storage=storage) as saved:
        assert saved.restore() == 1
    assert state["value"] == 0


def test_a_forked_child_leaves_the_checkpointer_alone(tmp_path: Path) -> None:
    state = make()
    reading, writing = os.pipe()
    with se.Checkpointer(state, storage=str(tmp_path), snapshot_every=1) as checkpoint:
        checkpoint.restore()
        checkpoint.step(1, loss=one_step(state))
        child = os.fork()
        if child == 0:
            _ends_as_children_do(checkpoint, state, writing)
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        assert "was forked from process" in told
        checkpoint.step(2, loss=one_step(state))
        expected = weights(state).clone()
    fresh = make(seed=9)
    with se.Checkpointer(fresh, storage=str(tmp_path)) as checkpoint:
        assert checkpoint.restore() == 2
    assert (weights(fresh) == expected).all()


def _ends_as_children_do(checkpoint: se.Checkpointer, state: dict[str, Any], writing: int) -> None:
    code = 1
    try:
        try:
            one_step(state)  # its optimizer's hooks wait for no copy, which nobody makes here
            checkpoint.step(7)
        except UsageError as error:
            os.write(writing, str(error).encode())
        try:
            sys.exit(0)
        except SystemExit as end:
            checkpoint.__exit__(SystemExit, end, None)
            code = 0
    finally:
        os._exit(code)


def test_a_checkpointer_cannot_be_sent_elsewhere() -> None:
    with pytest.raises(UsageError, match="neither copied nor sent"):
        pickle.dumps(se.Checkpointer({"value": 1}))


def test_the_first_snapshot_of_a_run_is_committed_whatever_the_interval(tmp_path: Path) -> None:
    state = {"value": 0}
    storage = str(tmp_path)
    committed: set[int] = set()
    with (
        pytest.raises(KeyboardInterrupt),
        se.Checkpointer(state, storage=storage, snapshot_every=2, checkpoint_every=50) as saved,
    ):
        saved.restore()
        for step in range(1, 50):
            state["value"] = step
            saved.step(step)
            # A snapshot is left out where a slow machine has no slot for it yet.
            assert saved.wait()
            committed |= {entry.step for entry in Catalog(FolderStorage(tmp_path)).entries()}
        raise KeyboardInterrupt
    assert len(committed) == 1
    assert committed.pop() % 2 == 0


def test_a_run_that_shall_commit_nothing_does_so_at_its_end_alone(tmp_path: Path) -> None:
    storage = str(tmp_path)
    with se.Checkpointer(
        {"value": 0}, storage=storage, snapshot_every=1, checkpoint_every=0
    ) as saved:
        saved.restore()
        for step in (1, 2):
            saved.step(step)
            assert saved.wait()
        assert not Catalog(FolderStorage(tmp_path)).entries()
    assert [entry.step for entry in Catalog(FolderStorage(tmp_path)).entries()] == [2]
